//! FlexOlmo.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::{olmo2, olmoe};

/// The description.
pub const FAMILY: Family = Family {
    name: "flex_olmo",
    summary: "FlexOlmo: OLMo 2 with experts in every block",
    model_types: &["flex_olmo"],
    architectures: &["FlexOlmoForCausalLM", "FlexOlmoModel"],
    norms: olmo2::FAMILY.norms,
    math: olmo2::FAMILY.math,
    ..olmoe::FAMILY
};
