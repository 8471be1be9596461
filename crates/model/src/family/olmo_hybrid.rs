//! OLMo Hybrid.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Norms};
use super::llama;
use super::math::{Math, Positions, QueryKeyNorm};
use super::recurrent::{Recurrent, RecurrentBlocks, RecurrentMixer, RecurrentParameter};
use super::role::NormSite::{
    self, AttentionInput, AttentionOutput, FeedForwardInput, FeedForwardOutput, RecurrentOutput,
};
use super::role::Role::{
    Output, RecurrentDecay, RecurrentGate, RecurrentKey, RecurrentQuery, RecurrentStrength, RecurrentValue,
};
use super::role::{NormKind, RowOrder};

/// The norms of a block of either kind. transformers has one name for what stands before the network in one and behind attention in the
/// other, and saves it under the first of these.
const NORMS: Norms = &[
    (AttentionInput, "attention_layer_norm"),
    (AttentionInput, "input_layernorm"),
    (NormSite::Query, "self_attn.q_norm"),
    (NormSite::Key, "self_attn.k_norm"),
    (RecurrentOutput, "linear_attn.o_norm"),
    (AttentionOutput, "post_attention_layernorm"),
    (FeedForwardInput, "feedforward_layer_norm"),
    (FeedForwardOutput, "post_feedforward_layernorm"),
];

/// The description.
pub const FAMILY: Family = Family {
    name: "olmo_hybrid",
    summary: "OLMo Hybrid: gated delta net behind norms in three of four blocks, attention before norms in the others",
    model_types: &["olmo_hybrid"],
    architectures: &["OlmoHybridForCausalLM", "OlmoHybridModel"],
    recurrent: Some(Recurrent {
        mixer: RecurrentMixer::GatedDelta { doubled_if: Some(("linear_allow_neg_eigval", true)), eps: Some(1e-5) },
        linears: &[
            (RecurrentQuery, "linear_attn.q_proj"),
            (RecurrentKey, "linear_attn.k_proj"),
            (RecurrentValue, "linear_attn.v_proj"),
            (RecurrentGate, "linear_attn.g_proj"),
            (RecurrentStrength, "linear_attn.b_proj"),
            (RecurrentDecay, "linear_attn.a_proj"),
            (Output, "linear_attn.o_proj"),
        ],
        rows: RowOrder::Stacked,
        parameters: &[
            (RecurrentParameter::QueryConvolution, "linear_attn.q_conv1d"),
            (RecurrentParameter::KeyConvolution, "linear_attn.k_conv1d"),
            (RecurrentParameter::ValueConvolution, "linear_attn.v_conv1d"),
            (RecurrentParameter::DecayLog, "linear_attn.A_log"),
            (RecurrentParameter::StepBias, "linear_attn.dt_bias"),
        ],
        norm_kind: NormKind::Rms,
        convolution_bias: None,
        blocks: RecurrentBlocks::AllButEvery("full_attention_interval", 4),
    }),
    norms: NORMS,
    math: Math {
        positions: Positions::RotaryIfTheta,
        query_key_norm: QueryKeyNorm::AllHeads,
        norms_by_mixer: true,
        ..Math::LLAMA
    },
    ..llama::FAMILY
};
