//! T5.
//!
//! Data only; the fields are explained in [`super::description`].

use super::decoder_stack::DecoderStack;
use super::description::{Family, Trunk};
use super::encoder::Encoder;
use super::math::{LogitScale, Math};
use super::role::NormSite::{AttentionInput, CrossAttentionInput, FeedForwardInput, Final, SourceFinal};
use super::role::Role::{Down, Gate, Key, Output, Query, Up, Value};
use super::t5_encoder;

/// The decoder of all models like T5.
pub(super) const DECODER: DecoderStack = DecoderStack {
    blocks: "decoder.block",
    positions: None,
    trunk_norms: &[(Final, "decoder.final_layer_norm")],
    attention: t5_encoder::FAMILY.attention,
    cross_attention: &[
        (Query, "layer.1.EncDecAttention.q"),
        (Key, "layer.1.EncDecAttention.k"),
        (Value, "layer.1.EncDecAttention.v"),
        (Output, "layer.1.EncDecAttention.o"),
    ],
    mlp: &[
        (Gate, "layer.2.DenseReluDense.wi_0"),
        (Up, "layer.2.DenseReluDense.wi_1"),
        (Up, "layer.2.DenseReluDense.wi"),
        (Down, "layer.2.DenseReluDense.wo"),
    ],
    norms: &[
        (AttentionInput, "layer.0.layer_norm"),
        (CrossAttentionInput, "layer.1.layer_norm"),
        (FeedForwardInput, "layer.2.layer_norm"),
    ],
};

/// The encoder of all models like T5 that have tables of biases in their first blocks.
pub(super) const ENCODER: Encoder = Encoder {
    block_distances: t5_encoder::DISTANCES,
    embedding_copies: &["encoder.embed_tokens", "decoder.embed_tokens"],
    decoder: Some(DECODER),
    ..Encoder::PLAIN
};

/// The description.
pub const FAMILY: Family = Family {
    name: "t5",
    summary: "T5 and FLAN-T5: an encoder-decoder with biases for distances that all blocks share",
    model_types: &["t5"],
    architectures: &["T5ForConditionalGeneration"],
    trunk: Trunk {
        norms: &[(SourceFinal, "encoder.final_layer_norm")],
        heads: &["lm_head"],
        ..t5_encoder::FAMILY.trunk
    },
    encoder: Some(ENCODER),
    math: Math {
        logit_scale: LogitScale::InverseRootHiddenIf("scale_decoder_outputs", "tie_word_embeddings"),
        ..t5_encoder::FAMILY.math
    },
    ..t5_encoder::FAMILY
};
