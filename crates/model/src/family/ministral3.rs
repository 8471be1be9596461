//! Ministral 3, alone and inside the multimodal checkpoints.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::math::{Math, QueryScale};
use super::mistral;

/// The description.
pub const FAMILY: Family = Family {
    name: "ministral3",
    summary: "Ministral 3: Mistral whose queries grow with their position",
    model_types: &["ministral3"],
    architectures: &["Ministral3ForCausalLM", "Ministral3Model"],
    math: Math { query_scale: QueryScale::RotaryParameters, ..mistral::FAMILY.math },
    ..mistral::FAMILY
};
