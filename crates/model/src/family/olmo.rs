//! OLMo 1.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::Math;
use super::role::NormKind;

/// The description.
pub const FAMILY: Family = Family {
    name: "olmo",
    summary: "OLMo 1: Llama with LayerNorm without parameters",
    model_types: &["olmo"],
    architectures: &["OlmoForCausalLM", "OlmoModel"],
    norm_kind: NormKind::LayerNormPlain,
    math: Math { clips: true, ..Math::LLAMA },
    ..llama::FAMILY
};
