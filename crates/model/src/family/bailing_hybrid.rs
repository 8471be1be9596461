//! Hybrids of Ling 3.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS, GATED_MLP, MODEL_TRUNK, SHARED_EXPERTS};
use super::deepseek_v3;
use super::description::{Family, Moe, Trunk};
use super::math::{HeadGate, Math, Routing};
use super::recurrent::{Recurrent, RecurrentBlocks, RecurrentMixer, RecurrentParameter};
use super::role::NormSite::{AttentionInput, FeedForwardInput, KeyValueLatent, RecurrentOutput};
use super::role::Role::{
    self, KeyValueDown, KeyValueUp, Output, Query, RecurrentGate, RecurrentKey, RecurrentQuery, RecurrentSteps,
    RecurrentStrength, RecurrentValue, Router,
};
use super::role::{NormKind, RowOrder};

/// The description.
pub const FAMILY: Family = Family {
    name: "bailing_hybrid",
    summary: "Ling 3: delta nets with a bounded decay for each channel, latent attention with gated heads in every sixth block",
    model_types: &["bailing_hybrid"],
    architectures: &["BailingHybridForCausalLM", "BailingHybridModel"],
    trunk: Trunk { embedding: "word_embeddings", other_embedding: Some("embed_tokens"), ..MODEL_TRUNK },
    attention: &[
        (Query, "attention.q_proj"),
        (KeyValueDown, "attention.kv_a_proj_with_mqa"),
        (KeyValueUp, "attention.kv_b_proj"),
        (Role::HeadGate, "attention.g_proj"),
        (Output, "attention.dense"),
    ],
    recurrent: Some(Recurrent {
        mixer: RecurrentMixer::ChannelDelta { is_bounded: true },
        linears: &[
            (RecurrentQuery, "attention.q_proj"),
            (RecurrentKey, "attention.k_proj"),
            (RecurrentValue, "attention.v_proj"),
            (RecurrentSteps, "attention.f_proj"),
            (RecurrentStrength, "attention.b_proj"),
            (RecurrentGate, "attention.g_proj"),
            (Output, "attention.dense"),
        ],
        rows: RowOrder::Stacked,
        parameters: &[
            (RecurrentParameter::QueryConvolution, "attention.q_conv1d"),
            (RecurrentParameter::KeyConvolution, "attention.k_conv1d"),
            (RecurrentParameter::ValueConvolution, "attention.v_conv1d"),
            (RecurrentParameter::DecayLog, "attention.A_log"),
            (RecurrentParameter::StepBias, "attention.dt_bias"),
        ],
        norm_kind: NormKind::Rms,
        convolution_bias: None,
        blocks: RecurrentBlocks::Listed,
    }),
    mlp: GATED_MLP,
    moe: Some(Moe {
        routing: &[(Router, "mlp.gate")],
        experts: &[EXPERTS, FUSED_EXPERTS],
        shared: SHARED_EXPERTS,
        rule: Routing::SigmoidGroups,
    }),
    norms: &[
        (AttentionInput, "input_layernorm"),
        (KeyValueLatent, "attention.kv_a_layernorm"),
        (RecurrentOutput, "attention.o_norm"),
        (FeedForwardInput, "post_attention_layernorm"),
    ],
    parameters: &["mlp.gate.expert_bias"],
    math: Math { head_gate: HeadGate::OfHeads, ..deepseek_v3::FAMILY.math },
    keep: &["lm_head", "*mlp.gate", "*attention.b_proj", "*attention.f_proj", "*attention.g_proj"],
    ..deepseek_v3::FAMILY
};
