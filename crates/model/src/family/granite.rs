//! Granite 3 dense models.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{AttentionScale, EmbeddingScale, LogitScale, Math};

/// The description.
pub const FAMILY: Family = Family {
    name: "granite",
    summary: "Granite 3: Llama with multipliers on embeddings, attention, residuals and logits",
    model_types: &["granite"],
    architectures: &["GraniteForCausalLM", "GraniteModel"],
    math: Math {
        attention_scale: AttentionScale::Multiplier("attention_multiplier"),
        embedding_scale: EmbeddingScale::Multiplier("embedding_multiplier"),
        logit_scale: LogitScale::Divisor("logits_scaling"),
        residual_multiplier: Some("residual_multiplier"),
        ..Math::LLAMA
    },
    ..llama::FAMILY
};
