//! Cohere Command R7B and Command A.
//!
//! Data only; the fields are explained in [`super::description`].

use super::cohere;
use super::description::Family;
use super::math::{Math, Pairing, Positions, RotaryLayers, Window};
use super::role::NormSite::AttentionInput;

/// The description.
pub const FAMILY: Family = Family {
    name: "cohere2",
    summary: "Command R7B, Command A: sliding window in three of four layers, rotary embeddings only there",
    model_types: &["cohere2"],
    architectures: &["Cohere2ForCausalLM", "Cohere2Model"],
    norms: &[(AttentionInput, "input_layernorm")],
    math: Math {
        positions: Positions::Rotary { pairing: Pairing::Neighbours, partial: 1.0, layers: RotaryLayers::Sliding },
        window: Window::Alternating { period: 4 },
        ..cohere::FAMILY.math
    },
    ..cohere::FAMILY
};
