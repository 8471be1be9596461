//! LFM2, text-only and inside LFM2-VL.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::MODEL_TRUNK;
use super::description::{Family, Linears, Trunk};
use super::llama;
use super::math::{Activation, ActivationRule, Math};
use super::recurrent::{Recurrent, RecurrentBlocks, RecurrentMixer, RecurrentParameter};
use super::role::NormSite::{self, AttentionInput, FeedForwardInput, Final};
use super::role::Role::{Down, Gate, Key, Output, Query, RecurrentInput, Up, Value};
use super::role::{NormKind, RowOrder};

/// The short convolution of both kinds of LFM2.
pub const SHORT_CONVOLUTION: Recurrent = Recurrent {
    mixer: RecurrentMixer::ShortConvolution,
    linears: &[(RecurrentInput, "conv.in_proj"), (Output, "conv.out_proj")],
    rows: RowOrder::Stacked,
    parameters: &[(RecurrentParameter::Convolution, "conv.conv")],
    norm_kind: NormKind::Rms,
    convolution_bias: Some(("conv_bias", false)),
    blocks: RecurrentBlocks::AllButListed { key: "full_attn_idxs", without: false },
};

/// The feed-forward network of both.
pub const MLP: Linears = &[(Gate, "feed_forward.w1"), (Up, "feed_forward.w3"), (Down, "feed_forward.w2")];

/// The description.
pub const FAMILY: Family = Family {
    name: "lfm2",
    summary: "LFM2: short convolutions in most blocks, attention in the others",
    model_types: &["lfm2"],
    architectures: &["Lfm2ForCausalLM", "Lfm2Model"],
    trunk: Trunk { norms: &[(Final, "embedding_norm")], ..MODEL_TRUNK },
    attention: &[
        (Query, "self_attn.q_proj"),
        (Key, "self_attn.k_proj"),
        (Value, "self_attn.v_proj"),
        (Output, "self_attn.out_proj"),
    ],
    recurrent: Some(SHORT_CONVOLUTION),
    mlp: MLP,
    norms: &[
        (AttentionInput, "operator_norm"),
        (NormSite::Query, "self_attn.q_layernorm"),
        (NormSite::Key, "self_attn.k_layernorm"),
        (FeedForwardInput, "ffn_norm"),
    ],
    math: Math { activation: ActivationRule::Fixed(Activation::Silu), ..Math::LLAMA },
    keep: &["lm_head", "*conv.in_proj", "*conv.out_proj"],
    ..llama::FAMILY
};
