//! Phi-1, Phi-1.5 and Phi-2.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::MODEL_TRUNK;
use super::description::{Family, Trunk};
use super::llama;
use super::math::{Activation, ActivationRule, Math, Pairing, Positions, Residual};
use super::role::NormKind;
use super::role::NormSite::{self, AttentionInput, Final};
use super::role::Role::{Down, Key, Output, Query, Up, Value};

/// The description.
pub const FAMILY: Family = Family {
    name: "phi",
    summary: "Phi-1 to Phi-2: parallel residual after one LayerNorm, plain MLP",
    model_types: &["phi"],
    architectures: &["PhiForCausalLM", "PhiModel"],
    trunk: Trunk { norms: &[(Final, "final_layernorm")], ..MODEL_TRUNK },
    attention: &[
        (Query, "self_attn.q_proj"),
        (Key, "self_attn.k_proj"),
        (Value, "self_attn.v_proj"),
        (Output, "self_attn.dense"),
    ],
    mlp: &[(Up, "mlp.fc1"), (Down, "mlp.fc2")],
    norms: &[
        (AttentionInput, "input_layernorm"),
        (NormSite::Query, "self_attn.q_layernorm"),
        (NormSite::Key, "self_attn.k_layernorm"),
    ],
    norm_kind: NormKind::LayerNorm,
    math: Math {
        activation: ActivationRule::Config(Activation::GeluTanh),
        residual: Residual::Parallel,
        query_key_norm_if: Some("qk_layernorm"),
        positions: Positions::rotary(Pairing::Halves, 0.5),
        ..Math::LLAMA
    },
    ..llama::FAMILY
};
