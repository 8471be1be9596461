//! ModernBERT.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Trunk};
use super::encoder::{Encoder, Readout, ReadoutRows, ReadoutStep};
use super::math::{Activation, ActivationRule, Math, Window};
use super::role::NormSite::{AttentionInput, Embedding, FeedForwardInput, Final};
use super::role::Role::{Down, GateUp, Output, QueryKeyValue};
use super::role::{NormKind, Orientation, RowOrder};

/// What all classes but that for masked tokens do.
const CLASSIFIER: &[ReadoutStep] = &[
    ReadoutStep::Linear("head.dense"),
    ReadoutStep::NamedActivation("classifier_activation"),
    ReadoutStep::Norm("head.norm"),
    ReadoutStep::Linear("classifier"),
];

/// What is read out of the last hidden states.
const READOUTS: &[Readout] = &[
    Readout {
        name: "masked-token logits",
        class: Some("ForMaskedLM"),
        rows: ReadoutRows::All,
        steps: &[
            ReadoutStep::Linear("head.dense"),
            ReadoutStep::NamedActivation("classifier_activation"),
            ReadoutStep::Norm("head.norm"),
            ReadoutStep::Head,
        ],
    },
    Readout {
        name: "logits",
        class: Some("ForSequenceClassification"),
        rows: ReadoutRows::FirstUnlessMean("classifier_pooling"),
        steps: CLASSIFIER,
    },
    Readout {
        name: "logits",
        class: Some("ForMultipleChoice"),
        rows: ReadoutRows::FirstUnlessMean("classifier_pooling"),
        steps: CLASSIFIER,
    },
    Readout { name: "logits", class: Some("ForTokenClassification"), rows: ReadoutRows::All, steps: CLASSIFIER },
    Readout { name: "logits", class: Some("ForQuestionAnswering"), rows: ReadoutRows::All, steps: CLASSIFIER },
];

/// The description.
pub const FAMILY: Family = Family {
    name: "modernbert",
    summary: "ModernBERT: an encoder with rotary positions, gated networks and windows that see both ways",
    model_types: &["modernbert"],
    architectures: &[
        "ModernBertModel",
        "ModernBertForMaskedLM",
        "ModernBertForSequenceClassification",
        "ModernBertForTokenClassification",
        "ModernBertForQuestionAnswering",
    ],
    trunk: Trunk {
        path: "model",
        embedding: "embeddings.tok_embeddings",
        positions: None,
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
        blocks: "layers",
        norms: &[(Embedding, "embeddings.norm"), (Final, "final_norm")],
        linears: &[],
        heads: &["decoder"],
    },
    attention: &[(QueryKeyValue, "attn.Wqkv"), (Output, "attn.Wo")],
    recurrent: None,
    mlp: &[(GateUp, "mlp.Wi"), (Down, "mlp.Wo")],
    moe: None,
    norms: &[(AttentionInput, "attn_norm"), (FeedForwardInput, "mlp_norm")],
    norm_kind: NormKind::LayerNorm,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::Stacked,
    parameters: &[],
    extra: None,
    cross_attention: None,
    encoder: Some(Encoder { readouts: READOUTS, ..Encoder::PLAIN }),
    math: Math {
        activation: ActivationRule::Config(Activation::Gelu),
        window: Window::AllButEveryNth,
        first_norm_is_absent: true,
        ..Math::LLAMA
    },
    keep: &[],
    config_like: None,
    in_memory: &[],
};
