//! RoBERTa, and XLM-RoBERTa and CamemBERT, which are the same but for their tokens.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{BERT_ATTENTION, BERT_MLP, BERT_NORMS};
use super::description::{Family, Trunk};
use super::encoder::{Encoder, Readout, ReadoutRows, ReadoutStep};
use super::math::{Activation, ActivationRule, Math, Positions, Residual};
use super::role::NormSite::Embedding;
use super::role::{NormKind, Orientation, RowOrder};

/// What is read out of the last hidden states.
pub(super) const READOUTS: &[Readout] = &[
    Readout::POOLED,
    Readout::MASKED_TOKENS,
    Readout::CLASSES,
    Readout {
        name: "logits",
        class: Some("ForMultipleChoice"),
        rows: ReadoutRows::First,
        steps: &[ReadoutStep::Linear("pooler.dense"), ReadoutStep::Tanh, ReadoutStep::Linear("classifier")],
    },
    Readout::CLASSES_OF_TOKENS,
    Readout::ANSWERS,
];

/// The description.
pub const FAMILY: Family = Family {
    name: "roberta",
    summary: "RoBERTa, XLM-RoBERTa, CamemBERT: like BERT, with positions behind that of the padding token",
    model_types: &["roberta", "xlm-roberta", "camembert"],
    architectures: &[
        "RobertaModel",
        "RobertaForMaskedLM",
        "RobertaForSequenceClassification",
        "RobertaForTokenClassification",
        "RobertaForQuestionAnswering",
        "XLMRobertaModel",
        "XLMRobertaForMaskedLM",
        "XLMRobertaForSequenceClassification",
        "XLMRobertaForTokenClassification",
        "XLMRobertaForQuestionAnswering",
        "CamembertModel",
        "CamembertForMaskedLM",
    ],
    trunk: Trunk {
        path: "roberta",
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
        positions: Positions::LearnedBehindPadding { padding: 1, is_fixed: false },
        ..Math::LLAMA
    },
    keep: &[],
    config_like: None,
    in_memory: &[],
};
