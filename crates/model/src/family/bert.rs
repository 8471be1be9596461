//! BERT.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{BERT_ATTENTION, BERT_MLP, BERT_NORMS};
use super::description::{Family, Trunk};
use super::encoder::{Encoder, Readout, ReadoutRows, ReadoutStep};
use super::math::{Activation, ActivationRule, Math, Positions, Residual};
use super::role::NormSite::Embedding;
use super::role::{NormKind, Orientation, RowOrder};

/// What is read out of the last hidden states.
const READOUTS: &[Readout] = &[
    Readout::POOLED,
    Readout {
        name: "masked-token logits",
        class: None,
        rows: ReadoutRows::All,
        steps: &[
            ReadoutStep::Linear("cls.predictions.transform.dense"),
            ReadoutStep::Activation,
            ReadoutStep::Norm("cls.predictions.transform.LayerNorm"),
            ReadoutStep::Head,
        ],
    },
    Readout {
        name: "next-sentence logits",
        class: None,
        rows: ReadoutRows::First,
        steps: &[ReadoutStep::Linear("pooler.dense"), ReadoutStep::Tanh, ReadoutStep::Linear("cls.seq_relationship")],
    },
    Readout {
        name: "logits",
        class: None,
        rows: ReadoutRows::First,
        steps: &[ReadoutStep::Linear("pooler.dense"), ReadoutStep::Tanh, ReadoutStep::Linear("classifier")],
    },
    Readout::CLASSES_OF_TOKENS,
    Readout::ANSWERS,
];

/// The description.
pub const FAMILY: Family = Family {
    name: "bert",
    summary: "BERT: an encoder with learned positions, token types and norms behind its branches",
    model_types: &["bert"],
    architectures: &[
        "BertModel",
        "BertForMaskedLM",
        "BertForPreTraining",
        "BertForSequenceClassification",
        "BertForTokenClassification",
        "BertForQuestionAnswering",
    ],
    trunk: Trunk {
        path: "bert",
        embedding: "embeddings.word_embeddings",
        positions: Some("embeddings.position_embeddings"),
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
        blocks: "encoder.layer",
        norms: &[(Embedding, "embeddings.LayerNorm")],
        linears: &[],
        heads: &["cls.predictions.decoder", "cls.predictions"],
    },
    attention: BERT_ATTENTION,
    recurrent: None,
    mlp: BERT_MLP,
    moe: None,
    norms: BERT_NORMS,
    norm_kind: NormKind::LayerNorm,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::Stacked,
    parameters: &[],
    extra: None,
    cross_attention: None,
    encoder: Some(Encoder {
        token_types: Some("embeddings.token_type_embeddings"),
        readouts: READOUTS,
        ..Encoder::PLAIN
    }),
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
