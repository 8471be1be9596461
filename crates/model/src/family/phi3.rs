//! Phi-3, Phi-3.5 and Phi-4 (the dense text models).
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::FUSED_GATED_MLP;
use super::description::Family;
use super::llama;
use super::math::{Math, Window};
use super::role::Role::{Output, QueryKeyValue};

/// The description.
pub const FAMILY: Family = Family {
    name: "phi3",
    summary: "Phi-3 to Phi-4: Llama with q, k and v in one matrix and gate and up in one matrix",
    model_types: &["phi3"],
    architectures: &["Phi3ForCausalLM", "Phi3Model"],
    attention: &[(QueryKeyValue, "self_attn.qkv_proj"), (Output, "self_attn.o_proj")],
    mlp: FUSED_GATED_MLP,
    math: Math { window: Window::Every, ..Math::LLAMA },
    ..llama::FAMILY
};
