//! ESM-2, a model of proteins.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{BERT_ATTENTION, BERT_MLP};
use super::description::{Family, Trunk};
use super::encoder::{Encoder, Readout};
use super::math::{Activation, ActivationRule, Math, Positions};
use super::role::NormSite::{AttentionInput, Embedding, FeedForwardInput, Final};
use super::role::{NormKind, Orientation, RowOrder};

/// What is read out of the last hidden states.
const READOUTS: &[Readout] = &[Readout::POOLED, Readout::MASKED_TOKENS, Readout::CLASSES, Readout::CLASSES_OF_TOKENS];

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
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
        blocks: "encoder.layer",
        norms: &[(Embedding, "embeddings.layer_norm"), (Final, "encoder.emb_layer_norm_after")],
        linears: &[],
        heads: &["lm_head.decoder", "lm_head"],
    },
    attention: BERT_ATTENTION,
    recurrent: None,
    mlp: BERT_MLP,
    moe: None,
    norms: &[(AttentionInput, "attention.LayerNorm"), (FeedForwardInput, "LayerNorm")],
    norm_kind: NormKind::LayerNorm,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::Stacked,
    parameters: &[],
    extra: None,
    cross_attention: None,
    encoder: Some(Encoder {
        drops_tokens: true,
        readouts: READOUTS,
        unread: &["contact_head.regression"],
        ..Encoder::PLAIN
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
