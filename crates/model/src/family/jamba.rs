//! Jamba.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::EXPERTS;
use super::description::{ExpertLayout, Family, Linears, Moe};
use super::math::{Math, Positions, Routing};
use super::recurrent::{Mamba1Norms, Recurrent, RecurrentBlocks, RecurrentMixer, RecurrentParameter};
use super::role::NormSite::{AttentionInput, FeedForwardInput, RecurrentReads, RecurrentStep, RecurrentWrites};
use super::role::Role::{self, Down, Gate, Output, RecurrentChoice, RecurrentInputGate, Router, Up};
use super::role::{NormKind, RowOrder};
use super::{bamba, llama};

/// Mamba under names with the kind of the mixer.
pub const MAMBA1: Recurrent = Recurrent {
    mixer: RecurrentMixer::Mamba1 { norms: Mamba1Norms::Weighted },
    linears: &[
        (RecurrentInputGate, "mamba.in_proj"),
        (RecurrentChoice, "mamba.x_proj"),
        (Role::RecurrentStep, "mamba.dt_proj"),
        (Output, "mamba.out_proj"),
    ],
    rows: RowOrder::Stacked,
    parameters: &[
        (RecurrentParameter::Convolution, "mamba.conv1d"),
        (RecurrentParameter::DecayLog, "mamba.A_log"),
        (RecurrentParameter::Skip, "mamba.D"),
    ],
    norm_kind: NormKind::Rms,
    convolution_bias: Some(("mamba_conv_bias", true)),
    blocks: RecurrentBlocks::AllButPeriodic { period: ("attn_layer_period", 8), offset: ("attn_layer_offset", 4) },
};

const EXPERT_LINEARS: Linears = &[
    (Gate, "feed_forward.experts.{}.gate_proj"),
    (Up, "feed_forward.experts.{}.up_proj"),
    (Down, "feed_forward.experts.{}.down_proj"),
];

/// The description.
pub const FAMILY: Family = Family {
    name: "jamba",
    summary: "Jamba: Mamba in most blocks, attention without positions in the others, experts in every second block",
    model_types: &["jamba"],
    architectures: &["JambaForCausalLM", "JambaModel"],
    trunk: bamba::FAMILY.trunk,
    recurrent: Some(MAMBA1),
    mlp: bamba::MLP,
    moe: Some(Moe {
        routing: &[(Router, "feed_forward.router")],
        experts: &[ExpertLayout { linears: EXPERT_LINEARS, ..EXPERTS }],
        shared: &[],
        rule: Routing::SoftmaxThenTopIfNormalised,
    }),
    norms: &[
        (AttentionInput, "input_layernorm"),
        (RecurrentStep, "mamba.dt_layernorm"),
        (RecurrentWrites, "mamba.b_layernorm"),
        (RecurrentReads, "mamba.c_layernorm"),
        (FeedForwardInput, "pre_ff_layernorm"),
    ],
    math: Math { positions: Positions::None, ..Math::LLAMA },
    keep: &["lm_head", "*feed_forward.router", "*mamba.x_proj", "*mamba.dt_proj"],
    ..llama::FAMILY
};
