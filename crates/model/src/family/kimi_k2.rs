//! Kimi K2.
//!
//! Data only; the fields are explained in [`super::description`].

use super::deepseek_v3;
use super::description::Family;

/// The description.
pub const FAMILY: Family = Family {
    name: "kimi_k2",
    summary: "Kimi K2: architecture of DeepSeek V3; by default only routed experts are quantized",
    model_types: &["kimi_k2"],
    architectures: &[],
    keep: &[
        "*self_attn*",
        "*mlp.gate",
        "*lm_head",
        "*mlp.gate_proj",
        "*mlp.up_proj",
        "*mlp.down_proj",
        "*shared_experts*",
    ],
    ..deepseek_v3::FAMILY
};
