//! Nemotron-4 and Minitron.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{Activation, ActivationRule, Math, Pairing, Positions};
use super::role::NormKind;
use super::role::Role::{Down, Up};

/// The description.
pub const FAMILY: Family = Family {
    name: "nemotron",
    summary: "Nemotron-4, Minitron: plain MLP with squared ReLU, LayerNorm with unit offset",
    model_types: &["nemotron"],
    architectures: &["NemotronForCausalLM", "NemotronModel"],
    mlp: &[(Up, "mlp.up_proj"), (Down, "mlp.down_proj")],
    norm_kind: NormKind::LayerNormUnitOffset,
    math: Math {
        activation: ActivationRule::Config(Activation::ReluSquared),
        positions: Positions::rotary(Pairing::Halves, 0.5),
        ..Math::LLAMA
    },
    ..llama::FAMILY
};
