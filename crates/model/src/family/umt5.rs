//! umT5.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::encoder::Encoder;
use super::math::{LogitScale, Math};
use super::{t5, umt5_encoder};

/// The description.
pub const FAMILY: Family = Family {
    name: "umt5",
    summary: "umT5: T5 with biases for distances in every block",
    model_types: &["umt5"],
    architectures: &["UMT5ForConditionalGeneration"],
    encoder: Some(Encoder { block_distances: umt5_encoder::DISTANCES, ..t5::ENCODER }),
    math: Math { logit_scale: LogitScale::InverseRootHidden, ..t5::FAMILY.math },
    ..t5::FAMILY
};
