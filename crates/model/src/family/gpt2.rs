//! GPT-2.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Trunk};
use super::math::{Activation, ActivationRule, Math, Positions};
use super::role::NormSite::{AttentionInput, FeedForwardInput, Final};
use super::role::Role::{Down, Output, QueryKeyValue, Up};
use super::role::{NormKind, Orientation, RowOrder};

/// The description.
pub const FAMILY: Family = Family {
    name: "gpt2",
    summary: "GPT-2: learned positions, LayerNorm, weights stored as [in, out]",
    model_types: &["gpt2"],
    architectures: &["GPT2LMHeadModel", "GPT2Model"],
    trunk: Trunk {
        path: "transformer",
        embedding: "wte",
        positions: Some("wpe"),
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
        blocks: "h",
        norms: &[(Final, "ln_f")],
        linears: &[],
        heads: &["lm_head"],
    },
    attention: &[(QueryKeyValue, "attn.c_attn"), (Output, "attn.c_proj")],
    recurrent: None,
    mlp: &[(Up, "mlp.c_fc"), (Down, "mlp.c_proj")],
    moe: None,
    norms: &[(AttentionInput, "ln_1"), (FeedForwardInput, "ln_2")],
    norm_kind: NormKind::LayerNorm,
    orientation: Orientation::InOut,
    qkv_rows: RowOrder::Stacked,
    parameters: &[],
    extra: None,
    cross_attention: None,
    encoder: None,
    math: Math {
        activation: ActivationRule::Config(Activation::GeluTanh),
        positions: Positions::Learned { offset: 0 },
        ..Math::LLAMA
    },
    keep: &["lm_head"],
    config_like: None,
    in_memory: &[],
};
