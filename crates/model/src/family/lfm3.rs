//! LFM3.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Linears, Norms};
use super::lfm2;
use super::math::{HeadGate, Math};
use super::recurrent::{Recurrent, RecurrentBlocks};
use super::role::NormSite::{self, AttentionInput, AttentionOutput, FeedForwardInput, FeedForwardOutput};
use super::role::Role::{self, Key, Output, Query, Value};

/// The gate has another name where transformers has it in memory.
const ATTENTION: Linears = &[
    (Query, "self_attn.q_proj"),
    (Key, "self_attn.k_proj"),
    (Value, "self_attn.v_proj"),
    (Role::HeadGate, "self_attn.gate_proj"),
    (Role::HeadGate, "self_attn.g_proj"),
    (Output, "self_attn.o_proj"),
];

const NORMS: Norms = &[
    (AttentionInput, "operator_norm"),
    (NormSite::Query, "self_attn.q_norm"),
    (NormSite::Key, "self_attn.k_norm"),
    (AttentionOutput, "post_operator_norm"),
    (FeedForwardInput, "ffn_norm"),
    (FeedForwardOutput, "post_ffn_norm"),
];

/// The description.
pub const FAMILY: Family = Family {
    name: "lfm3",
    summary: "LFM3: short convolutions in half of the blocks, norms before and after each branch, gates on the heads of attention",
    model_types: &["lfm3"],
    architectures: &["Lfm3ForCausalLM", "Lfm3Model"],
    attention: ATTENTION,
    recurrent: Some(Recurrent { blocks: RecurrentBlocks::Listed, ..lfm2::SHORT_CONVOLUTION }),
    norms: NORMS,
    math: Math {
        head_gate: HeadGate::OfHeads,
        head_gate_if: Some("use_attention_gate"),
        output_norms_if: Some("use_sandwich_norm"),
        ..lfm2::FAMILY.math
    },
    keep: &["lm_head", "*conv.in_proj", "*conv.out_proj", "*self_attn.gate_proj", "*self_attn.g_proj"],
    ..lfm2::FAMILY
};
