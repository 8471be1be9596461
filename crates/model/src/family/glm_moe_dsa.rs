//! GLM-5.
//!
//! Data only; the fields are explained in [`super::description`].

use super::deepseek_v32;
use super::description::Family;
use super::math::{Indexer, Math, Pairing};

/// The description.
pub const FAMILY: Family = Family {
    name: "glm_moe_dsa",
    summary: "GLM-5: architecture of DeepSeek V3.2; by default only routed and shared experts are quantized",
    model_types: &["glm_moe_dsa"],
    architectures: &["GlmMoeDsaForCausalLM", "GlmMoeDsaModel"],
    math: Math { indexer: Some(Indexer::Keys(Pairing::Neighbours)), ..deepseek_v32::FAMILY.math },
    keep: &["*self_attn*", "*mlp.gate", "*lm_head", "*mlp.gate_proj", "*mlp.up_proj", "*mlp.down_proj"],
    ..deepseek_v32::FAMILY
};
