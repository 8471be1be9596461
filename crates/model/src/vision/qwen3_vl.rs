//! Qwen3-VL, Qwen3-VL-MoE and Qwen3.5: rows of squares of patches, in images of any size, and in all but Qwen3.5 further rows behind single blocks
//! of the tower, which join the stream behind the first blocks of the language model (DeepStack, arXiv 2406.04334).
//!
//! Data only; the fields are explained in [`super`].

use super::towers::{DescribedTower, TowerNumber};
use super::{FurtherRows, ImageReading, PlacePositions, Placeholder, ProcessorRows, Projector, TokenKey, TowerRows};
use crate::family::NormKind;

pub(super) const READING: ImageReading = ImageReading {
    name: "qwen3_vl",
    model_types: &["qwen3_vl", "qwen3_vl_moe"],
    tower: "visual",
    described: Some(DescribedTower {
        name: "qwen3_vl_vision",
        keys: &[
            TowerNumber { key: "num_hidden_layers", stated: &["depth"], default: 27 },
            TowerNumber { key: "hidden_size", stated: &["hidden_size"], default: 1152 },
            TowerNumber { key: "num_attention_heads", stated: &["num_heads"], default: 16 },
            TowerNumber { key: "num_channels", stated: &["in_channels"], default: 3 },
            TowerNumber { key: "patch_size", stated: &["patch_size"], default: 16 },
            TowerNumber { key: "spatial_merge_size", stated: &["spatial_merge_size"], default: 2 },
            TowerNumber { key: "temporal_patch_size", stated: &["temporal_patch_size"], default: 2 },
        ],
        norm_eps: 1e-6,
    }),
    rows: TowerRows::Last,
    projector: Projector::Merged {
        norm: "merger.norm",
        norm_kind: NormKind::LayerNorm,
        layers: ["merger.linear_fc1", "merger.linear_fc2"],
    },
    further: Some(FurtherRows {
        layers: "deepstack_visual_indexes",
        default: &[8, 16, 24],
        projector: "deepstack_merger_list",
        norm: "norm",
        norm_kind: NormKind::LayerNorm,
        linears: ["linear_fc1", "linear_fc2"],
    }),
    placeholder: Placeholder::Repeated { token: TokenKey { keys: &["image_token_id"], default: 151_655 } },
    processor_rows: ProcessorRows::Squares,
    positions: Some(PlacePositions { sections: [24, 20, 20], takes_turns: true }),
    sees_whole_images: false,
};

pub(super) const READING_3_5: ImageReading = ImageReading {
    name: "qwen3_5",
    model_types: &["qwen3_5", "qwen3_5_moe"],
    further: None,
    placeholder: Placeholder::Repeated { token: TokenKey { keys: &["image_token_id"], default: 248_056 } },
    positions: Some(PlacePositions { sections: [11, 11, 10], takes_turns: true }),
    ..READING
};
