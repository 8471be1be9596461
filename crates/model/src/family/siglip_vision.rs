//! The tower for images of SigLIP.
//!
//! Data only; the fields are explained in [`super::description`].

use super::clip_vision;
use super::description::{Family, Trunk};
use super::encoder::{Encoder, ImageTokens, Readout, ReadoutRows, ReadoutStep};
use super::math::{Activation, ActivationRule, Math};
use super::role::NormSite::Final;

/// What is read out of the last hidden states.
const READOUTS: &[Readout] = &[Readout {
    name: "pooled",
    class: None,
    rows: ReadoutRows::Attended("head"),
    steps: &[ReadoutStep::Added(&[
        ReadoutStep::Norm("head.layernorm"),
        ReadoutStep::Linear("head.mlp.fc1"),
        ReadoutStep::Activation,
        ReadoutStep::Linear("head.mlp.fc2"),
    ])],
}];

/// The description.
pub const FAMILY: Family = Family {
    name: "siglip_vision",
    summary: "SigLIP, images: ViT without the token of a class, pooled by attention",
    model_types: &["siglip_vision_model"],
    architectures: &["SiglipVisionModel"],
    trunk: Trunk { norms: &[(Final, "post_layernorm")], ..clip_vision::FAMILY.trunk },
    encoder: Some(Encoder {
        images: Some(ImageTokens { learned: &[], must_be_square: true, unread: &[] }),
        readouts: READOUTS,
        ..Encoder::PLAIN
    }),
    math: Math { activation: ActivationRule::Config(Activation::GeluTanh), ..clip_vision::FAMILY.math },
    ..clip_vision::FAMILY
};
