//! ERNIE 4.5, dense models.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{Math, Pairing, Positions};

/// The description.
pub const FAMILY: Family = Family {
    name: "ernie4_5",
    summary: "ERNIE 4.5 dense: Llama with rotary embeddings on neighbouring components",
    model_types: &["ernie4_5"],
    architectures: &["Ernie4_5ForCausalLM", "Ernie4_5Model", "Ernie4_5_ForCausalLM"],
    math: Math { positions: Positions::rotary(Pairing::Neighbours, 1.0), ..Math::LLAMA },
    ..llama::FAMILY
};
