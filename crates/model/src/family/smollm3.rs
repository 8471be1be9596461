//! SmolLM3.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{Math, Pairing, Positions, RotaryLayers, Window};

/// The description.
pub const FAMILY: Family = Family {
    name: "smollm3",
    summary: "SmolLM3: Llama without rotary embeddings in every fourth layer",
    model_types: &["smollm3"],
    architectures: &["SmolLM3ForCausalLM", "SmolLM3Model"],
    math: Math {
        positions: Positions::Rotary { pairing: Pairing::Halves, partial: 1.0, layers: RotaryLayers::Listed },
        window: Window::Full,
        ..Math::LLAMA
    },
    ..llama::FAMILY
};
