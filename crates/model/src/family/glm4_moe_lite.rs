//! GLM-4.7 Flash.
//!
//! Data only; the fields are explained in [`super::description`].

use super::deepseek_v3;
use super::description::Family;

/// The description.
pub const FAMILY: Family = Family {
    name: "glm4_moe_lite",
    summary: "GLM-4.7 Flash: architecture of DeepSeek V3; attention is kept by default",
    model_types: &["glm4_moe_lite"],
    architectures: &["Glm4MoeLiteForCausalLM", "Glm4MoeLiteModel"],
    keep: &["lm_head", "*self_attn*", "*mlp.gate"],
    ..deepseek_v3::FAMILY
};
