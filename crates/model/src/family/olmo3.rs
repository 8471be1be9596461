//! OLMo 3.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::math::{Math, Window};
use super::olmo2;

/// The description.
pub const FAMILY: Family = Family {
    name: "olmo3",
    summary: "OLMo 3: OLMo 2 with a sliding window in three of four layers",
    model_types: &["olmo3"],
    architectures: &["Olmo3ForCausalLM", "Olmo3Model"],
    math: Math { window: Window::Alternating { period: 4 }, ..olmo2::FAMILY.math },
    ..olmo2::FAMILY
};
