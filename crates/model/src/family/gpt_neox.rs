//! GPT-NeoX and Pythia.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Trunk};
use super::math::{Activation, ActivationRule, Math, Pairing, Positions, Residual};
use super::role::NormSite::{AttentionInput, FeedForwardInput, Final};
use super::role::Role::{Down, Output, QueryKeyValue, Up};
use super::role::{NormKind, Orientation, RowOrder};

/// The description.
pub const FAMILY: Family = Family {
    name: "gpt_neox",
    summary: "GPT-NeoX, Pythia: parallel residual, q, k and v in one matrix, per head",
    model_types: &["gpt_neox"],
    architectures: &["GPTNeoXForCausalLM", "GPTNeoXModel"],
    trunk: Trunk {
        path: "gpt_neox",
        embedding: "embed_in",
        positions: None,
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
        blocks: "layers",
        norms: &[(Final, "final_layer_norm")],
        linears: &[],
        heads: &["embed_out", "lm_head"],
    },
    attention: &[(QueryKeyValue, "attention.query_key_value"), (Output, "attention.dense")],
    recurrent: None,
    mlp: &[(Up, "mlp.dense_h_to_4h"), (Down, "mlp.dense_4h_to_h")],
    moe: None,
    norms: &[(AttentionInput, "input_layernorm"), (FeedForwardInput, "post_attention_layernorm")],
    norm_kind: NormKind::LayerNorm,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::PerHead,
    parameters: &[],
    extra: None,
    cross_attention: None,
    encoder: None,
    math: Math {
        activation: ActivationRule::Config(Activation::Gelu),
        residual: Residual::ParallelIf("use_parallel_residual", true),
        positions: Positions::rotary(Pairing::Halves, 0.25),
        ..Math::LLAMA
    },
    keep: &["embed_out", "lm_head"],
    config_like: None,
    in_memory: &[("embed_out", "lm_head")],
};
