//! DINOv2 with registers.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Trunk};
use super::dinov2;
use super::encoder::{Encoder, ImageTokens, LearnedToken};

/// The description.
pub const FAMILY: Family = Family {
    name: "dinov2_with_registers",
    summary: "DINOv2 with further learned rows, which have no positions",
    model_types: &["dinov2_with_registers"],
    architectures: &["Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"],
    trunk: Trunk { path: "dinov2_with_registers", ..dinov2::FAMILY.trunk },
    encoder: Some(Encoder {
        images: Some(ImageTokens {
            learned: &[
                LearnedToken { path: "embeddings.cls_token", has_positions: true },
                LearnedToken { path: "embeddings.register_tokens", has_positions: false },
            ],
            must_be_square: true,
            unread: &["embeddings.mask_token"],
        }),
        readouts: dinov2::READOUTS,
        ..Encoder::PLAIN
    }),
    ..dinov2::FAMILY
};
