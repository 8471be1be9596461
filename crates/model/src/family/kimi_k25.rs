//! The language model of Kimi K2.5 and K2.6.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::kimi_k2;

/// The description.
pub const FAMILY: Family = Family {
    name: "kimi_k25",
    summary: "Kimi K2.5: Kimi K2 beside a part for images; by default only routed experts are quantized",
    model_types: &["kimi_k25"],
    architectures: &["Kimi_K25ForConditionalGeneration", "KimiK25ForConditionalGeneration"],
    keep: &[
        "*self_attn*",
        "*mlp.gate",
        "*lm_head",
        "*mlp.gate_proj",
        "*mlp.up_proj",
        "*mlp.down_proj",
        "*shared_experts*",
        "*mm_projector*",
        "*vision_tower*",
    ],
    ..kimi_k2::FAMILY
};
