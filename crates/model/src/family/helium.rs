//! Helium.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{Math, Pairing, Positions};

/// The description.
pub const FAMILY: Family = Family {
    name: "helium",
    summary: "Helium: Llama with rotary embeddings on neighbouring components",
    model_types: &["helium"],
    architectures: &["HeliumForCausalLM", "HeliumModel"],
    math: Math { positions: Positions::rotary(Pairing::Neighbours, 1.0), ..Math::LLAMA },
    ..llama::FAMILY
};
