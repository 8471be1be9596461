//! Nemotron-H and Nemotron 3.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::EXPERTS;
use super::description::{ExpertLayout, Family, Moe};
use super::math::{Activation, ActivationRule, Math, Positions, Residual, Routing};
use super::recurrent::{Mamba2Norm, Recurrent, RecurrentMixer};
use super::role::NormSite::{AttentionInput, RecurrentOutput};
use super::role::Role::{Down, Key, Output, Query, Router, Up, Value};
use super::{llama, mamba2};

/// The description.
pub const FAMILY: Family = Family {
    name: "nemotron_h",
    summary: "Nemotron-H and 3: blocks of one branch each, Mamba 2, attention, a plain network or experts",
    model_types: &["nemotron_h"],
    architectures: &["NemotronHForCausalLM", "NemotronHModel"],
    trunk: mamba2::FAMILY.trunk,
    attention: &[(Query, "mixer.q_proj"), (Key, "mixer.k_proj"), (Value, "mixer.v_proj"), (Output, "mixer.o_proj")],
    recurrent: Some(Recurrent { mixer: RecurrentMixer::Mamba2 { norm: Mamba2Norm::PerGroup }, ..mamba2::MAMBA2 }),
    mlp: &[(Up, "mixer.up_proj"), (Down, "mixer.down_proj")],
    moe: Some(Moe {
        routing: &[(Router, "mixer.gate")],
        experts: &[ExpertLayout {
            linears: &[(Up, "mixer.experts.{}.up_proj"), (Down, "mixer.experts.{}.down_proj")],
            ..EXPERTS
        }],
        shared: &[(Up, "mixer.shared_experts.up_proj"), (Down, "mixer.shared_experts.down_proj")],
        rule: Routing::SigmoidGroups,
    }),
    norms: &[(AttentionInput, "norm"), (RecurrentOutput, "mixer.norm")],
    parameters: &["mixer.gate.e_score_correction_bias"],
    math: Math {
        activation: ActivationRule::Config(Activation::ReluSquared),
        residual: Residual::Single,
        positions: Positions::None,
        ..Math::LLAMA
    },
    keep: &["lm_head", "*mixer.gate"],
    ..llama::FAMILY
};
