//! ELECTRA.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{BERT_ATTENTION, BERT_MLP, BERT_NORMS};
use super::description::{Family, Trunk};
use super::encoder::{Encoder, Readout, ReadoutRows, ReadoutStep};
use super::math::{Activation, ActivationRule, Math, Positions, Residual};
use super::role::NormSite::Embedding;
use super::role::Role::ProjectIn;
use super::role::{NormKind, Orientation, RowOrder};

/// What is read out of the last hidden states.
const READOUTS: &[Readout] = &[
    Readout {
        name: "masked-token logits",
        class: None,
        rows: ReadoutRows::All,
        steps: &[
            ReadoutStep::Linear("generator_predictions.dense"),
            ReadoutStep::Gelu,
            ReadoutStep::Norm("generator_predictions.LayerNorm"),
            ReadoutStep::Head,
        ],
    },
    Readout {
        name: "replaced-token logits",
        class: None,
        rows: ReadoutRows::All,
        steps: &[
            ReadoutStep::Linear("discriminator_predictions.dense"),
            ReadoutStep::Activation,
            ReadoutStep::Linear("discriminator_predictions.dense_prediction"),
        ],
    },
    Readout {
        name: "logits",
        class: None,
        rows: ReadoutRows::First,
        steps: &[
            ReadoutStep::Linear("classifier.dense"),
            ReadoutStep::Gelu,
            ReadoutStep::Linear("classifier.out_proj"),
        ],
    },
    Readout::CLASSES_OF_TOKENS,
    Readout::ANSWERS,
];

/// The description.
pub const FAMILY: Family = Family {
    name: "electra",
    summary: "ELECTRA: like BERT, with embeddings of another width",
    model_types: &["electra"],
    architectures: &[
        "ElectraModel",
        "ElectraForPreTraining",
        "ElectraForMaskedLM",
        "ElectraForSequenceClassification",
        "ElectraForTokenClassification",
        "ElectraForQuestionAnswering",
    ],
    trunk: Trunk {
        path: "electra",
        embedding: "embeddings.word_embeddings",
        positions: Some("embeddings.position_embeddings"),
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
        blocks: "encoder.layer",
        norms: &[(Embedding, "embeddings.LayerNorm")],
        linears: &[(ProjectIn, "embeddings_project")],
        heads: &["generator_lm_head"],
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
