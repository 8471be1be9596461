//! DeiT, trained with the token of a teacher.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Trunk};
use super::encoder::{Encoder, ImageTokens, LearnedToken};
use super::vit;

/// The description.
pub const FAMILY: Family = Family {
    name: "deit",
    summary: "DeiT: ViT with a second token, for what a teacher says",
    model_types: &["deit"],
    architectures: &["DeiTModel", "DeiTForImageClassification"],
    trunk: Trunk { path: "deit", ..vit::FAMILY.trunk },
    encoder: Some(Encoder {
        images: Some(ImageTokens {
            learned: &[
                LearnedToken { path: "embeddings.cls_token", has_positions: true },
                LearnedToken { path: "embeddings.distillation_token", has_positions: true },
            ],
            must_be_square: false,
            unread: &["embeddings.mask_token"],
        }),
        readouts: vit::READOUTS,
        ..Encoder::PLAIN
    }),
    ..vit::FAMILY
};
