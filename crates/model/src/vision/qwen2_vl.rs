//! Qwen2-VL and Qwen2.5-VL: rows of squares of patches, in images of any size.
//!
//! Data only; the fields are explained in [`super`].

use super::towers::{DescribedTower, TowerNumber};
use super::{ImageReading, PlacePositions, Placeholder, ProcessorRows, Projector, TokenKey, TowerRows};
use crate::family::NormKind;

const IMAGE_TOKEN: TokenKey = TokenKey { keys: &["image_token_id"], default: 151_655 };

/// The keys that the towers of all these models have under names of their own.
const SHARED: [TowerNumber; 4] = [
    TowerNumber { key: "num_attention_heads", stated: &["num_heads"], default: 16 },
    TowerNumber { key: "num_channels", stated: &["in_channels"], default: 3 },
    TowerNumber { key: "spatial_merge_size", stated: &["spatial_merge_size"], default: 2 },
    TowerNumber { key: "temporal_patch_size", stated: &["temporal_patch_size"], default: 2 },
];

pub(super) const READING: ImageReading = ImageReading {
    name: "qwen2_vl",
    model_types: &["qwen2_vl"],
    tower: "visual",
    described: Some(DescribedTower {
        name: "qwen2_vl_vision",
        keys: &[
            TowerNumber { key: "num_hidden_layers", stated: &["depth"], default: 32 },
            TowerNumber { key: "hidden_size", stated: &["embed_dim"], default: 1280 },
            TowerNumber { key: "patch_size", stated: &["patch_size"], default: 14 },
            SHARED[0],
            SHARED[1],
            SHARED[2],
            SHARED[3],
        ],
        norm_eps: 1e-6,
    }),
    rows: TowerRows::Last,
    projector: Projector::Merged {
        norm: "merger.ln_q",
        norm_kind: NormKind::LayerNorm,
        layers: ["merger.mlp.0", "merger.mlp.2"],
    },
    further: None,
    placeholder: Placeholder::Repeated { token: IMAGE_TOKEN },
    processor_rows: ProcessorRows::Squares,
    positions: Some(PlacePositions { sections: [16, 24, 24], takes_turns: false }),
    sees_whole_images: false,
};

pub(super) const READING_2_5: ImageReading = ImageReading {
    name: "qwen2_5_vl",
    model_types: &["qwen2_5_vl"],
    described: Some(DescribedTower {
        name: "qwen2_5_vl_vision",
        keys: &[
            TowerNumber { key: "num_hidden_layers", stated: &["depth"], default: 32 },
            TowerNumber { key: "hidden_size", stated: &["hidden_size"], default: 3584 },
            TowerNumber { key: "patch_size", stated: &["patch_size"], default: 14 },
            TowerNumber { key: "window_size", stated: &["window_size"], default: 112 },
            SHARED[0],
            SHARED[1],
            SHARED[2],
            SHARED[3],
        ],
        norm_eps: 1e-6,
    }),
    projector: Projector::Merged {
        norm: "merger.ln_q",
        norm_kind: NormKind::Rms,
        layers: ["merger.mlp.0", "merger.mlp.2"],
    },
    ..READING
};
