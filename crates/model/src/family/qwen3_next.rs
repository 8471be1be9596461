//! Qwen3-Next.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Extra, Family, Norms};
use super::math::{HeadGate, Math, Pairing, Positions};
use super::recurrent::{Recurrent, RecurrentBlocks, RecurrentMixer, RecurrentParameter};
use super::role::NormSite::{self, AttentionInput, FeedForwardInput, RecurrentOutput};
use super::role::Role::{Output, RecurrentInputGate, RecurrentRates};
use super::role::{NormKind, Role, RowOrder};
use super::{llama, qwen2_moe};

/// The norms of a block of either kind.
pub const NORMS: Norms = &[
    (AttentionInput, "input_layernorm"),
    (NormSite::Query, "self_attn.q_norm"),
    (NormSite::Key, "self_attn.k_norm"),
    (RecurrentOutput, "linear_attn.norm"),
    (FeedForwardInput, "post_attention_layernorm"),
];

/// Gated delta net whose inputs are two matrices, laid out by key heads.
pub const GATED_DELTA: Recurrent = Recurrent {
    mixer: RecurrentMixer::GatedDelta { doubled_if: None, eps: None },
    linears: &[
        (RecurrentInputGate, "linear_attn.in_proj_qkvz"),
        (RecurrentRates, "linear_attn.in_proj_ba"),
        (Output, "linear_attn.out_proj"),
    ],
    rows: RowOrder::PerHead,
    parameters: &[
        (RecurrentParameter::Convolution, "linear_attn.conv1d"),
        (RecurrentParameter::DecayLog, "linear_attn.A_log"),
        (RecurrentParameter::StepBias, "linear_attn.dt_bias"),
    ],
    norm_kind: NormKind::Rms,
    convolution_bias: None,
    blocks: RecurrentBlocks::AllButEvery("full_attention_interval", 4),
};

/// The description.
pub const FAMILY: Family = Family {
    name: "qwen3_next",
    summary: "Qwen3-Next: gated delta net in three of four blocks, gated attention, many experts and a shared one",
    model_types: &["qwen3_next"],
    architectures: &["Qwen3NextForCausalLM", "Qwen3NextModel"],
    recurrent: Some(GATED_DELTA),
    moe: qwen2_moe::FAMILY.moe,
    norms: NORMS,
    norm_kind: NormKind::RmsUnitOffset,
    extra: Some(Extra { path: "mtp", blocks: "layers", linears: &[(Role::Unknown, "fc")] }),
    encoder: None,
    math: Math { positions: Positions::rotary(Pairing::Halves, 0.25), head_gate: HeadGate::WithQueries, ..Math::LLAMA },
    keep: &[
        "lm_head",
        "mtp.*",
        "*linear_attn.in_proj_ba",
        "*linear_attn.in_proj_qkvz",
        "*mlp.gate",
        "*mlp.shared_expert_gate",
        "*self_attn.k_proj",
        "*self_attn.q_proj",
        "*self_attn.v_proj",
    ],
    ..llama::FAMILY
};
