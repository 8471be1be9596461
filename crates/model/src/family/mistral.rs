//! Mistral: LLaMA with a sliding window where config.json sets one.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{Math, Window};

/// The description.
pub const FAMILY: Family = Family {
    name: "mistral",
    summary: "Mistral 7B, Nemo, Small: Llama with an optional sliding window",
    model_types: &["mistral"],
    architectures: &["MistralForCausalLM", "MistralModel"],
    math: Math { window: Window::Every, ..Math::LLAMA },
    ..llama::FAMILY
};
