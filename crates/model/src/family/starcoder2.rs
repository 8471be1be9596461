//! StarCoder 2.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{Activation, ActivationRule, Math, Window};
use super::role::NormKind;
use super::role::Role::{Down, Up};

/// The description.
pub const FAMILY: Family = Family {
    name: "starcoder2",
    summary: "StarCoder 2: LayerNorm, biases, plain MLP with GELU",
    model_types: &["starcoder2"],
    architectures: &["Starcoder2ForCausalLM", "Starcoder2Model"],
    mlp: &[(Up, "mlp.c_fc"), (Down, "mlp.c_proj")],
    norm_kind: NormKind::LayerNorm,
    math: Math { activation: ActivationRule::Config(Activation::GeluTanh), window: Window::Every, ..Math::LLAMA },
    ..llama::FAMILY
};
