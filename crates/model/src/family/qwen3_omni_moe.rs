//! The language model of Qwen3-Omni-MoE.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::qwen3_moe;

/// The description.
pub const FAMILY: Family = Family {
    name: "qwen3_omni_moe",
    summary: "Qwen3-Omni-MoE: Qwen3-MoE beside towers for vision and audio; what speaks is kept",
    model_types: &["qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen3_omni_moe_text"],
    architectures: &["Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration"],
    keep: &["*lm_head", "*mlp.gate"],
    ..qwen3_moe::FAMILY
};
