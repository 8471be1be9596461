//! DeBERTa V2 and V3.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{BERT_MLP, BERT_NORMS};
use super::description::{Family, Trunk};
use super::encoder::{Encoder, Readout, ReadoutRows, ReadoutStep};
use super::math::{Activation, ActivationRule, Math, Positions, Residual};
use super::role::NormSite::{Distances, Embedding};
use super::role::Role::{Key, Output, Query, Value};
use super::role::{NormKind, Orientation, RowOrder};

/// What is read out of the last hidden states.
const READOUTS: &[Readout] = &[
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
        name: "logits",
        class: None,
        rows: ReadoutRows::First,
        steps: &[
            ReadoutStep::Linear("pooler.dense"),
            ReadoutStep::NamedActivation("pooler_hidden_act"),
            ReadoutStep::Linear("classifier"),
        ],
    },
    Readout::CLASSES_OF_TOKENS,
    Readout::ANSWERS,
];

/// The description.
pub const FAMILY: Family = Family {
    name: "deberta_v2",
    summary: "DeBERTa V2 and V3: BERT whose queries and keys also attend to embeddings of distances",
    model_types: &["deberta-v2"],
    architectures: &[
        "DebertaV2Model",
        "DebertaV2ForMaskedLM",
        "DebertaV2ForSequenceClassification",
        "DebertaV2ForTokenClassification",
        "DebertaV2ForQuestionAnswering",
    ],
    trunk: Trunk {
        path: "deberta",
        embedding: "embeddings.word_embeddings",
        positions: Some("embeddings.position_embeddings"),
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
        blocks: "encoder.layer",
        norms: &[(Embedding, "embeddings.LayerNorm"), (Distances, "encoder.LayerNorm")],
        linears: &[],
        heads: &["cls.predictions.decoder", "cls.predictions"],
    },
    attention: &[
        (Query, "attention.self.query_proj"),
        (Key, "attention.self.key_proj"),
        (Value, "attention.self.value_proj"),
        (Output, "attention.output.dense"),
    ],
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
        distance_embeddings: Some("encoder.rel_embeddings"),
        readouts: READOUTS,
        ..Encoder::PLAIN
    }),
    math: Math {
        activation: ActivationRule::Config(Activation::Gelu),
        residual: Residual::PostNorm,
        positions: Positions::LearnedIf("position_biased_input", true),
        ..Math::LLAMA
    },
    keep: &[],
    config_like: None,
    in_memory: &[],
};
