//! GLM-4-9B and GLM-Edge in the transformers layout.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::FUSED_GATED_MLP;
use super::description::Family;
use super::llama;
use super::math::{Math, Pairing, Positions};

/// The description.
pub const FAMILY: Family = Family {
    name: "glm",
    summary: "GLM-4 9B: rotary embeddings on half of each head, gate and up in one matrix",
    model_types: &["glm"],
    architectures: &["GlmForCausalLM", "GlmModel"],
    mlp: FUSED_GATED_MLP,
    math: Math { positions: Positions::rotary(Pairing::Neighbours, 0.5), ..Math::LLAMA },
    ..llama::FAMILY
};
