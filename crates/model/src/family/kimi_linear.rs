//! Kimi Linear.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{BLOCK_SPARSE_EXPERTS, EXPERTS, FUSED_EXPERTS, GATED_MLP, SHARED_EXPERTS};
use super::description::{Family, Linears, Moe};
use super::math::{Math, Positions, Routing};
use super::recurrent::{Recurrent, RecurrentBlocks, RecurrentMixer, RecurrentParameter};
use super::role::NormSite::{AttentionInput, FeedForwardInput, KeyValueLatent, QueryLatent, RecurrentOutput};
use super::role::Role::{
    Down, Gate, Output, RecurrentDecayDown, RecurrentDecayUp, RecurrentGateDown, RecurrentGateUp, RecurrentKey,
    RecurrentQuery, RecurrentStrength, RecurrentValue, Router, Up,
};
use super::role::{NormKind, RowOrder};
use super::{deepseek_v2, deepseek_v3};

/// The experts that all tokens pass, as they are saved, and as transformers has them in memory.
const SHARED: Linears = &[
    (Gate, "block_sparse_moe.shared_experts.gate_proj"),
    (Up, "block_sparse_moe.shared_experts.up_proj"),
    (Down, "block_sparse_moe.shared_experts.down_proj"),
    SHARED_EXPERTS[0],
    SHARED_EXPERTS[1],
    SHARED_EXPERTS[2],
];

/// The description.
pub const FAMILY: Family = Family {
    name: "kimi_linear",
    summary: "Kimi Linear: delta nets with a decay for each channel, latent attention without positions in every fourth block",
    model_types: &["kimi_linear"],
    architectures: &["KimiLinearForCausalLM", "KimiLinearModel"],
    recurrent: Some(Recurrent {
        mixer: RecurrentMixer::ChannelDelta { is_bounded: false },
        linears: &[
            (RecurrentQuery, "self_attn.q_proj"),
            (RecurrentKey, "self_attn.k_proj"),
            (RecurrentValue, "self_attn.v_proj"),
            (RecurrentDecayDown, "self_attn.f_a_proj"),
            (RecurrentDecayUp, "self_attn.f_b_proj"),
            (RecurrentStrength, "self_attn.b_proj"),
            (RecurrentGateDown, "self_attn.g_a_proj"),
            (RecurrentGateUp, "self_attn.g_b_proj"),
            (Output, "self_attn.o_proj"),
        ],
        rows: RowOrder::Stacked,
        parameters: &[
            (RecurrentParameter::QueryConvolution, "self_attn.q_conv1d"),
            (RecurrentParameter::KeyConvolution, "self_attn.k_conv1d"),
            (RecurrentParameter::ValueConvolution, "self_attn.v_conv1d"),
            (RecurrentParameter::DecayLog, "self_attn.A_log"),
            (RecurrentParameter::StepBias, "self_attn.dt_bias"),
        ],
        norm_kind: NormKind::Rms,
        convolution_bias: None,
        blocks: RecurrentBlocks::Listed,
    }),
    // transformers saves the dense network under the name of the mixture.
    mlp: &[
        GATED_MLP[0],
        GATED_MLP[1],
        GATED_MLP[2],
        (Gate, "block_sparse_moe.gate_proj"),
        (Up, "block_sparse_moe.up_proj"),
        (Down, "block_sparse_moe.down_proj"),
    ],
    moe: Some(Moe {
        routing: &[(Router, "block_sparse_moe.gate"), (Router, "mlp.gate")],
        experts: &[BLOCK_SPARSE_EXPERTS, EXPERTS, FUSED_EXPERTS],
        shared: SHARED,
        rule: Routing::SigmoidGroups,
    }),
    norms: &[
        (AttentionInput, "input_layernorm"),
        (QueryLatent, "self_attn.q_a_layernorm"),
        (KeyValueLatent, "self_attn.kv_a_layernorm"),
        (RecurrentOutput, "self_attn.o_norm"),
        (FeedForwardInput, "post_attention_layernorm"),
    ],
    parameters: &["block_sparse_moe.gate.e_score_correction_bias", "mlp.gate.e_score_correction_bias"],
    math: Math { positions: Positions::None, ..deepseek_v3::FAMILY.math },
    keep: &[
        "lm_head",
        "*block_sparse_moe.gate",
        "*mlp.gate",
        "*self_attn.b_proj",
        "*self_attn.f_a_proj",
        "*self_attn.f_b_proj",
        "*self_attn.g_a_proj",
        "*self_attn.g_b_proj",
    ],
    ..deepseek_v2::FAMILY
};
