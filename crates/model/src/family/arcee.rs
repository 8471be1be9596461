//! Arcee Foundation Models.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{Activation, ActivationRule, Math};
use super::role::Role::{Down, Up};

/// The description.
pub const FAMILY: Family = Family {
    name: "arcee",
    summary: "Arcee AFM: Llama with a plain MLP with squared ReLU",
    model_types: &["arcee"],
    architectures: &["ArceeForCausalLM", "ArceeModel"],
    mlp: &[(Up, "mlp.up_proj"), (Down, "mlp.down_proj")],
    math: Math { activation: ActivationRule::Config(Activation::ReluSquared), ..Math::LLAMA },
    ..llama::FAMILY
};
