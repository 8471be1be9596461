//! The tower for text of SigLIP.
//!
//! Data only; the fields are explained in [`super::description`].

use super::clip_text;
use super::description::Family;
use super::encoder::{Encoder, Readout, ReadoutRows, ReadoutStep};
use super::math::{Activation, ActivationRule, Math};

/// What is read out of the last hidden states.
const READOUTS: &[Readout] =
    &[Readout { name: "pooled", class: None, rows: ReadoutRows::Last, steps: &[ReadoutStep::Linear("head")] }];

/// The description.
pub const FAMILY: Family = Family {
    name: "siglip_text",
    summary: "SigLIP, text: an encoder whose embedding is read at the last token",
    model_types: &["siglip_text_model"],
    architectures: &["SiglipTextModel"],
    encoder: Some(Encoder { readouts: READOUTS, ..Encoder::PLAIN }),
    math: Math { activation: ActivationRule::Config(Activation::GeluTanh), ..clip_text::FAMILY.math },
    ..clip_text::FAMILY
};
