//! MPNet.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::BERT_MLP;
use super::description::{Family, Trunk};
use super::encoder::Encoder;
use super::math::{Activation, ActivationRule, Math, Positions, Residual};
use super::roberta::READOUTS;
use super::role::NormSite::{AttentionInput, Embedding, FeedForwardInput};
use super::role::Role::{Key, Output, Query, Value};
use super::role::{NormKind, Orientation, RowOrder};

/// The description.
pub const FAMILY: Family = Family {
    name: "mpnet",
    summary: "MPNet: like BERT, with biases for distances between tokens",
    model_types: &["mpnet"],
    architectures: &[
        "MPNetModel",
        "MPNetForMaskedLM",
        "MPNetForSequenceClassification",
        "MPNetForTokenClassification",
        "MPNetForQuestionAnswering",
    ],
    trunk: Trunk {
        path: "mpnet",
        embedding: "embeddings.word_embeddings",
        positions: Some("embeddings.position_embeddings"),
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
        blocks: "encoder.layer",
        norms: &[(Embedding, "embeddings.LayerNorm")],
        linears: &[],
        heads: &["lm_head.decoder", "lm_head"],
    },
    attention: &[
        (Query, "attention.attn.q"),
        (Key, "attention.attn.k"),
        (Value, "attention.attn.v"),
        (Output, "attention.attn.o"),
    ],
    recurrent: None,
    mlp: BERT_MLP,
    moe: None,
    norms: &[(AttentionInput, "attention.LayerNorm"), (FeedForwardInput, "output.LayerNorm")],
    norm_kind: NormKind::LayerNorm,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::Stacked,
    parameters: &[],
    extra: None,
    cross_attention: None,
    encoder: Some(Encoder {
        relative_positions: Some("encoder.relative_attention_bias"),
        readouts: READOUTS,
        ..Encoder::PLAIN
    }),
    math: Math {
        activation: ActivationRule::Config(Activation::Gelu),
        residual: Residual::PostNorm,
        positions: Positions::LearnedBehindPadding { padding: 1, is_fixed: true },
        ..Math::LLAMA
    },
    keep: &[],
    config_like: None,
    in_memory: &[],
};
