//! mBART.
//!
//! Data only; the fields are explained in [`super::description`].

use super::bart;
use super::decoder_stack::DecoderStack;
use super::description::{Family, Trunk};
use super::encoder::Encoder;
use super::math::{Math, Residual};
use super::role::NormSite::{Embedding, Final, SourceEmbedding, SourceFinal};

/// The description.
pub const FAMILY: Family = Family {
    name: "mbart",
    summary: "mBART: BART with norms before its branches and behind both stacks",
    model_types: &["mbart"],
    architectures: &["MBartForConditionalGeneration"],
    trunk: Trunk {
        norms: &[(SourceEmbedding, "encoder.layernorm_embedding"), (SourceFinal, "encoder.layer_norm")],
        ..bart::FAMILY.trunk
    },
    encoder: Some(Encoder {
        embedding_copies: &["encoder.embed_tokens", "decoder.embed_tokens"],
        decoder: Some(DecoderStack {
            trunk_norms: &[(Embedding, "decoder.layernorm_embedding"), (Final, "decoder.layer_norm")],
            ..bart::DECODER
        }),
        ..Encoder::PLAIN
    }),
    math: Math { residual: Residual::Sequential, ..bart::FAMILY.math },
    ..bart::FAMILY
};
