//! Marian.
//!
//! Data only; the fields are explained in [`super::description`].

use super::bart;
use super::decoder_stack::DecoderStack;
use super::description::{Family, Trunk};
use super::encoder::Encoder;
use super::math::{Math, Positions};

/// The description.
pub const FAMILY: Family = Family {
    name: "marian",
    summary: "Marian: BART with positions of sines and cosines, without norms of embeddings",
    model_types: &["marian"],
    architectures: &["MarianMTModel"],
    trunk: Trunk { positions: None, norms: &[], ..bart::FAMILY.trunk },
    encoder: Some(Encoder {
        embedding_copies: &["encoder.embed_tokens", "decoder.embed_tokens"],
        decoder: Some(DecoderStack { positions: None, trunk_norms: &[], ..bart::DECODER }),
        ..Encoder::PLAIN
    }),
    math: Math { positions: Positions::SinusoidalOfWidth, ..bart::FAMILY.math },
    ..bart::FAMILY
};
