//! MiniMax-Text-01.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Norms};
use super::math::{Math, Residual};
use super::mixtral;
use super::recurrent::{Recurrent, RecurrentBlocks, RecurrentMixer, RecurrentParameter};
use super::role::NormSite::{AttentionInput, FeedForwardInput, RecurrentOutput};
use super::role::Role::{Output, RecurrentGate, RecurrentInput};
use super::role::{NormKind, RowOrder};

const NORMS: Norms = &[
    (AttentionInput, "input_layernorm"),
    (RecurrentOutput, "self_attn.norm"),
    (FeedForwardInput, "post_attention_layernorm"),
];

/// The description.
pub const FAMILY: Family = Family {
    name: "minimax",
    summary: "MiniMax-Text-01: lightning attention in most blocks, residuals of norms, experts as in Mixtral",
    model_types: &["minimax"],
    architectures: &["MiniMaxForCausalLM", "MiniMaxModel"],
    recurrent: Some(Recurrent {
        mixer: RecurrentMixer::Lightning { eps: 1e-6 },
        linears: &[
            (RecurrentInput, "self_attn.qkv_proj"),
            (RecurrentGate, "self_attn.output_gate"),
            (Output, "self_attn.out_proj"),
        ],
        rows: RowOrder::PerHead,
        parameters: &[
            (RecurrentParameter::DecayRate, "self_attn.slope_rate"),
            (RecurrentParameter::DecayPowers, "self_attn.query_decay"),
            (RecurrentParameter::DecayPowers, "self_attn.key_decay"),
            (RecurrentParameter::DecayPowers, "self_attn.diagonal_decay"),
        ],
        norm_kind: NormKind::Rms,
        convolution_bias: None,
        blocks: RecurrentBlocks::Listed,
    }),
    norms: NORMS,
    math: Math { residual: Residual::OfNorm, ..Math::LLAMA },
    ..mixtral::FAMILY
};
