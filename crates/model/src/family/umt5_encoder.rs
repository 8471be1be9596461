//! The encoder of umT5.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::encoder::{BlockDistances, Encoder, Readout};
use super::t5_encoder;

/// The tables of biases.
pub(super) const DISTANCES: Option<BlockDistances> =
    Some(BlockDistances { path: "layer.0.SelfAttention.relative_attention_bias", is_in_every_block: true });

/// The description.
pub const FAMILY: Family = Family {
    name: "umt5_encoder",
    summary: "umT5, encoder: T5 with biases for distances in every block",
    model_types: &["umt5"],
    architectures: &["UMT5EncoderModel", "UMT5ForTokenClassification"],
    encoder: Some(Encoder {
        block_distances: DISTANCES,
        is_of_its_classes: true,
        embedding_copies: &["encoder.embed_tokens"],
        readouts: &[Readout::CLASSES_OF_TOKENS],
        ..Encoder::PLAIN
    }),
    ..t5_encoder::FAMILY
};
