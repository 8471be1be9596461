//! DistilBERT.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Trunk};
use super::encoder::{Encoder, Readout, ReadoutRows, ReadoutStep};
use super::math::{Activation, ActivationRule, Math, Positions, Residual};
use super::role::NormSite::{AttentionInput, Embedding, FeedForwardInput};
use super::role::Role::{Down, Key, Output, Query, Up, Value};
use super::role::{NormKind, Orientation, RowOrder};

/// What is read out of the last hidden states.
const READOUTS: &[Readout] = &[
    Readout {
        name: "masked-token logits",
        class: None,
        rows: ReadoutRows::All,
        steps: &[
            ReadoutStep::Linear("vocab_transform"),
            ReadoutStep::Activation,
            ReadoutStep::Norm("vocab_layer_norm"),
            ReadoutStep::Head,
        ],
    },
    Readout {
        name: "logits",
        class: None,
        rows: ReadoutRows::First,
        steps: &[ReadoutStep::Linear("pre_classifier"), ReadoutStep::Relu, ReadoutStep::Linear("classifier")],
    },
    Readout::CLASSES_OF_TOKENS,
    Readout::ANSWERS,
];

/// The description.
pub const FAMILY: Family = Family {
    name: "distilbert",
    summary: "DistilBERT: like BERT, without token types",
    model_types: &["distilbert"],
    architectures: &[
        "DistilBertModel",
        "DistilBertForMaskedLM",
        "DistilBertForSequenceClassification",
        "DistilBertForTokenClassification",
        "DistilBertForQuestionAnswering",
    ],
    trunk: Trunk {
        path: "distilbert",
        embedding: "embeddings.word_embeddings",
        positions: Some("embeddings.position_embeddings"),
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
        blocks: "transformer.layer",
        norms: &[(Embedding, "embeddings.LayerNorm")],
        linears: &[],
        heads: &["vocab_projector"],
    },
    attention: &[
        (Query, "attention.q_lin"),
        (Key, "attention.k_lin"),
        (Value, "attention.v_lin"),
        (Output, "attention.out_lin"),
    ],
    recurrent: None,
    mlp: &[(Up, "ffn.lin1"), (Down, "ffn.lin2")],
    moe: None,
    norms: &[(AttentionInput, "sa_layer_norm"), (FeedForwardInput, "output_layer_norm")],
    norm_kind: NormKind::LayerNorm,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::Stacked,
    parameters: &[],
    extra: None,
    cross_attention: None,
    encoder: Some(Encoder { readouts: READOUTS, ..Encoder::PLAIN }),
    math: Math {
        activation: ActivationRule::Config(Activation::Gelu),
        residual: Residual::PostNorm,
        positions: Positions::Learned { offset: 0 },
        ..Math::LLAMA
    },
    keep: &[],
    config_like: None,
    in_memory: &[],
};
