//! BLOOM.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Trunk};
use super::math::{Activation, ActivationRule, Alibi, Math, Positions};
use super::role::NormSite::{AttentionInput, Embedding, FeedForwardInput, Final};
use super::role::Role::{Down, Output, QueryKeyValue, Up};
use super::role::{NormKind, Orientation, RowOrder};

/// The description.
pub const FAMILY: Family = Family {
    name: "bloom",
    summary: "BLOOM: ALiBi, LayerNorm also on the embeddings, q, k and v in one matrix, per head",
    model_types: &["bloom"],
    architectures: &["BloomForCausalLM", "BloomModel"],
    trunk: Trunk {
        path: "transformer",
        embedding: "word_embeddings",
        positions: None,
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
        blocks: "h",
        norms: &[(Embedding, "word_embeddings_layernorm"), (Final, "ln_f")],
        linears: &[],
        heads: &["lm_head"],
    },
    attention: &[(QueryKeyValue, "self_attention.query_key_value"), (Output, "self_attention.dense")],
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
        activation: ActivationRule::Fixed(Activation::GeluTanh),
        positions: Positions::Alibi(Alibi { rounded: false, scaled: false }),
        ..Math::LLAMA
    },
    keep: &["lm_head"],
    config_like: None,
    in_memory: &[],
};
