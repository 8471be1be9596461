//! Apertus.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{Activation, ActivationRule, Math};
use super::role::NormSite::{self, AttentionInput, FeedForwardInput};
use super::role::Role::{Down, Up};

/// The description.
pub const FAMILY: Family = Family {
    name: "apertus",
    summary: "Apertus: query and key norms, plain MLP with xIELU, whose parameters are learned",
    model_types: &["apertus"],
    architectures: &["ApertusForCausalLM", "ApertusModel"],
    mlp: &[(Up, "mlp.up_proj"), (Down, "mlp.down_proj")],
    norms: &[
        (AttentionInput, "attention_layernorm"),
        (NormSite::Query, "self_attn.q_norm"),
        (NormSite::Key, "self_attn.k_norm"),
        (FeedForwardInput, "feedforward_layernorm"),
    ],
    parameters: &["mlp.act_fn.alpha_p", "mlp.act_fn.alpha_n", "mlp.act_fn.beta", "mlp.act_fn.eps"],
    math: Math { activation: ActivationRule::Config(Activation::Xielu), ..Math::LLAMA },
    ..llama::FAMILY
};
