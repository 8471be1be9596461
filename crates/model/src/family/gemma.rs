//! Gemma 1.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{Activation, ActivationRule, EmbeddingScale, Math};
use super::role::NormKind;

/// The description.
pub const FAMILY: Family = Family {
    name: "gemma",
    summary: "Gemma 1: scaled embeddings, RMSNorm with unit offset, tied head",
    model_types: &["gemma"],
    architectures: &["GemmaForCausalLM", "GemmaModel"],
    norm_kind: NormKind::RmsUnitOffset,
    math: Math {
        // Early config.json files say `gelu` where the released model computes the tanh form.
        activation: ActivationRule::Fixed(Activation::GeluTanh),
        embedding_scale: EmbeddingScale::RootHidden,
        ..Math::LLAMA
    },
    ..llama::FAMILY
};
