//! GPT-J.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Trunk};
use super::math::{Activation, ActivationRule, Math, Pairing, Positions, Residual};
use super::role::NormSite::{AttentionInput, Final};
use super::role::Role::{Down, Key, Output, Query, Up, Value};
use super::role::{NormKind, Orientation, RowOrder};

/// The description.
pub const FAMILY: Family = Family {
    name: "gptj",
    summary: "GPT-J: parallel residual after one LayerNorm, rotary embeddings on part of each head",
    model_types: &["gptj"],
    architectures: &["GPTJForCausalLM", "GPTJModel"],
    trunk: Trunk {
        path: "transformer",
        embedding: "wte",
        positions: None,
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
        blocks: "h",
        norms: &[(Final, "ln_f")],
        linears: &[],
        heads: &["lm_head"],
    },
    attention: &[(Query, "attn.q_proj"), (Key, "attn.k_proj"), (Value, "attn.v_proj"), (Output, "attn.out_proj")],
    recurrent: None,
    mlp: &[(Up, "mlp.fc_in"), (Down, "mlp.fc_out")],
    moe: None,
    norms: &[(AttentionInput, "ln_1")],
    norm_kind: NormKind::LayerNorm,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::Stacked,
    parameters: &[],
    extra: None,
    cross_attention: None,
    encoder: None,
    math: Math {
        activation: ActivationRule::Config(Activation::GeluTanh),
        residual: Residual::Parallel,
        positions: Positions::rotary(Pairing::Neighbours, 0.25),
        ..Math::LLAMA
    },
    keep: &["lm_head"],
    config_like: None,
    in_memory: &[],
};
