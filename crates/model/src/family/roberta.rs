//! RoBERTa, and XLM-RoBERTa and CamemBERT, which are the same but for their tokens.
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
        name: "pooled",
        class: None,
        rows: ReadoutRows::First,
        steps: &[ReadoutStep::Linear("pooler.dense"), ReadoutStep::Tanh],
    },
    Readout {
        name: "masked-token logits",
        class: None,
        rows: ReadoutRows::All,
        steps: &[
            ReadoutStep::Linear("lm_head.dense"),
            ReadoutStep::Gelu,
            ReadoutStep::Norm("lm_head.layer_norm"),
            ReadoutStep::Head,
        ],
    },
    Readout {
        name: "logits",
        class: None,
        rows: ReadoutRows::First,
        steps: &[
            ReadoutStep::Linear("classifier.dense"),
            ReadoutStep::Tanh,
            ReadoutStep::Linear("classifier.out_proj"),
        ],
    },
    Readout {
        name: "logits",
        class: Some("ForMultipleChoice"),
        rows: ReadoutRows::First,
        steps: &[ReadoutStep::Linear("pooler.dense"), ReadoutStep::Tanh, ReadoutStep::Linear("classifier")],
    },
    Readout {
        name: "logits",
        class: Some("ForTokenClassification"),
        rows: ReadoutRows::All,
        steps: &[ReadoutStep::Linear("classifier")],
    },
    Readout { name: "logits", class: None, rows: ReadoutRows::All, steps: &[ReadoutStep::Linear("qa_outputs")] },
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
        layer_inputs: None,
        blocks: "encoder.layer",
        norms: &[(Embedding, "embeddings.LayerNorm")],
        linears: &[],
        heads: &["lm_head.decoder", "lm_head"],
    },
    attention: &[
        (Query, "attention.self.query"),
        (Key, "attention.self.key"),
        (Value, "attention.self.value"),
        (Output, "attention.output.dense"),
    ],
    recurrent: None,
    mlp: &[(Up, "intermediate.dense"), (Down, "output.dense")],
    moe: None,
    norms: &[(AttentionInput, "attention.output.LayerNorm"), (FeedForwardInput, "output.LayerNorm")],
    norm_kind: NormKind::LayerNorm,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::Stacked,
    parameters: &[],
    extra: None,
    encoder: Some(Encoder {
        token_types: Some("embeddings.token_type_embeddings"),
        relative_positions: None,
        drops_tokens: false,
        readouts: READOUTS,
        unread: &[],
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
