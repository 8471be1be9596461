//! The encoders of T5 and mT5.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Trunk};
use super::encoder::{BlockDistances, Encoder, Readout};
use super::math::{Activation, ActivationRule, AttentionScale, Math, Positions};
use super::role::NormSite::{AttentionInput, FeedForwardInput, Final};
use super::role::Role::{Down, Gate, Key, Output, Query, Up, Value};
use super::role::{NormKind, Orientation, RowOrder};

/// The tables of biases.
pub(super) const DISTANCES: Option<BlockDistances> =
    Some(BlockDistances { path: "layer.0.SelfAttention.relative_attention_bias", is_in_every_block: false });

/// The description.
pub const FAMILY: Family = Family {
    name: "t5_encoder",
    summary: "T5 and mT5, encoders: RMSNorm, biases for distances that all blocks share, unscaled scores",
    model_types: &["t5", "mt5"],
    architectures: &["T5EncoderModel", "T5ForTokenClassification", "MT5EncoderModel", "MT5ForTokenClassification"],
    trunk: Trunk {
        path: "transformer",
        embedding: "shared",
        positions: None,
        layer_inputs: None,
        blocks: "encoder.block",
        norms: &[(Final, "encoder.final_layer_norm")],
        linears: &[],
        other_embedding: None,
        parameters: &[],
        heads: &[],
    },
    attention: &[
        (Query, "layer.0.SelfAttention.q"),
        (Key, "layer.0.SelfAttention.k"),
        (Value, "layer.0.SelfAttention.v"),
        (Output, "layer.0.SelfAttention.o"),
    ],
    recurrent: None,
    mlp: &[
        (Gate, "layer.1.DenseReluDense.wi_0"),
        (Up, "layer.1.DenseReluDense.wi_1"),
        (Up, "layer.1.DenseReluDense.wi"),
        (Down, "layer.1.DenseReluDense.wo"),
    ],
    moe: None,
    norms: &[(AttentionInput, "layer.0.layer_norm"), (FeedForwardInput, "layer.1.layer_norm")],
    norm_kind: NormKind::Rms,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::Stacked,
    parameters: &[],
    extra: None,
    cross_attention: None,
    encoder: Some(Encoder {
        block_distances: DISTANCES,
        is_of_its_classes: true,
        embedding_copies: &["encoder.embed_tokens"],
        readouts: &[Readout::CLASSES_OF_TOKENS],
        ..Encoder::PLAIN
    }),
    math: Math {
        activation: ActivationRule::Config(Activation::Relu),
        positions: Positions::None,
        attention_scale: AttentionScale::One,
        gated_if: Some("feed_forward_proj"),
        ..Math::LLAMA
    },
    keep: &[],
    config_like: None,
    in_memory: &[],
};
