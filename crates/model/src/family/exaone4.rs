//! EXAONE 4.0.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::math::{Math, Pairing, Positions, QueryKeyNorm, RotaryLayers, Window};
use super::olmo2;

/// The description.
pub const FAMILY: Family = Family {
    name: "exaone4",
    summary: "EXAONE 4.0: norms after each branch, sliding window in three of four layers, rotary embeddings only there",
    model_types: &["exaone4"],
    architectures: &["Exaone4ForCausalLM", "Exaone4Model"],
    math: Math {
        positions: Positions::Rotary { pairing: Pairing::Halves, partial: 1.0, layers: RotaryLayers::SlidingIfAny },
        window: Window::Alternating { period: 4 },
        query_key_norm: QueryKeyNorm::PerHead,
        ..Math::LLAMA
    },
    ..olmo2::FAMILY
};
