//! ESM-2, a model of proteins.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Trunk};
use super::encoder::{Encoder, Readout, ReadoutRows, ReadoutStep};
use super::math::{Activation, ActivationRule, Math, Positions};
use super::role::NormSite::{AttentionInput, Embedding, FeedForwardInput, Final};
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
        class: Some("ForTokenClassification"),
        rows: ReadoutRows::All,
        steps: &[ReadoutStep::Linear("classifier")],
    },
];

/// The description.
pub const FAMILY: Family = Family {
    name: "esm",
    summary: "ESM-2: an encoder of proteins with rotary or learned positions and norms before its branches",
    model_types: &["esm"],
    architectures: &["EsmModel", "EsmForMaskedLM", "EsmForSequenceClassification", "EsmForTokenClassification"],
    trunk: Trunk {
        path: "esm",
        embedding: "embeddings.word_embeddings",
        positions: Some("embeddings.position_embeddings"),
        layer_inputs: None,
        blocks: "encoder.layer",
        norms: &[(Embedding, "embeddings.layer_norm"), (Final, "encoder.emb_layer_norm_after")],
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
    norms: &[(AttentionInput, "attention.LayerNorm"), (FeedForwardInput, "LayerNorm")],
    norm_kind: NormKind::LayerNorm,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::Stacked,
    parameters: &[],
    extra: None,
    encoder: Some(Encoder {
        token_types: None,
        relative_positions: None,
        drops_tokens: true,
        readouts: READOUTS,
        unread: &["contact_head.regression"],
    }),
    math: Math {
        activation: ActivationRule::Fixed(Activation::Gelu),
        positions: Positions::RotaryOrLearned,
        ..Math::LLAMA
    },
    keep: &[],
    config_like: None,
    in_memory: &[],
};
