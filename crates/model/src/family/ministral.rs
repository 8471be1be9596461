//! Ministral.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::mistral;

/// The description.
pub const FAMILY: Family = Family {
    name: "ministral",
    summary: "Ministral 8B: Mistral whose layers may differ in their windows",
    model_types: &["ministral"],
    architectures: &["MinistralForCausalLM", "MinistralModel"],
    ..mistral::FAMILY
};
