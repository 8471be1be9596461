//! GLM-4.5 and 4.6.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{PRE_AND_QK_NORMS, SELF_ATTENTION};
use super::deepseek_v3;
use super::description::Family;
use super::math::{Math, Pairing, Positions};

/// The description.
pub const FAMILY: Family = Family {
    name: "glm4_moe",
    summary: "GLM-4.5: grouped-query attention, experts as in DeepSeek V3; by default only routed experts are quantized",
    model_types: &["glm4_moe"],
    architectures: &["Glm4MoeForCausalLM", "Glm4MoeModel"],
    attention: SELF_ATTENTION,
    norms: PRE_AND_QK_NORMS,
    math: Math {
        positions: Positions::rotary(Pairing::Halves, 0.5),
        query_key_norm_if: Some("use_qk_norm"),
        ..Math::LLAMA
    },
    keep: &[
        "lm_head",
        "*mlp.gate",
        "*self_attn*",
        "*shared_experts.*",
        "*mlp.down_proj",
        "*mlp.gate_proj",
        "*mlp.up_proj",
    ],
    ..deepseek_v3::FAMILY
};
