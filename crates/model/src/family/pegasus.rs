//! Pegasus.
//!
//! Data only; the fields are explained in [`super::description`].

use super::bart;
use super::decoder_stack::DecoderStack;
use super::description::{Family, Trunk};
use super::encoder::Encoder;
use super::math::{Math, Positions, Residual};
use super::role::NormSite::{Final, SourceFinal};

/// The description.
pub const FAMILY: Family = Family {
    name: "pegasus",
    summary: "Pegasus: mBART without norms of embeddings, whose tables of positions hold sines and cosines",
    model_types: &["pegasus"],
    architectures: &["PegasusForConditionalGeneration"],
    trunk: Trunk { norms: &[(SourceFinal, "encoder.layer_norm")], ..bart::FAMILY.trunk },
    encoder: Some(Encoder {
        embedding_copies: &["encoder.embed_tokens", "decoder.embed_tokens"],
        decoder: Some(DecoderStack { trunk_norms: &[(Final, "decoder.layer_norm")], ..bart::DECODER }),
        ..Encoder::PLAIN
    }),
    math: Math { residual: Residual::Sequential, positions: Positions::Learned { offset: 0 }, ..bart::FAMILY.math },
    ..bart::FAMILY
};
