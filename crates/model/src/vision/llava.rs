//! LLaVA: hidden states of a tower behind one of its last blocks, and two layers.
//!
//! Data only; the fields are explained in [`super`].

use super::{ImageReading, Placeholder, ProcessorRows, Projector, TokenKey, TowerRows};
use crate::family::Activation;

pub(super) const READING: ImageReading = ImageReading {
    name: "llava",
    model_types: &["llava"],
    tower: "vision_tower",
    described: None,
    rows: TowerRows::Listed { layers: "vision_feature_layer", default: -2, strategy: "vision_feature_select_strategy" },
    projector: Projector::TwoLayers {
        layers: ["multi_modal_projector.linear_1", "multi_modal_projector.linear_2"],
        activation: ("projector_hidden_act", Activation::Gelu),
    },
    further: None,
    placeholder: Placeholder::Repeated {
        token: TokenKey { keys: &["image_token_id", "image_token_index"], default: 32_000 },
    },
    processor_rows: ProcessorRows::Patches {
        patch: "patch_size",
        further: "num_additional_image_tokens",
        strategy: "vision_feature_select_strategy",
    },
    positions: None,
    sees_whole_images: false,
};
