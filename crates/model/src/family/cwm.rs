//! Code World Model.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{Math, Window};

/// The description.
pub const FAMILY: Family = Family {
    name: "cwm",
    summary: "Code World Model: Llama with a sliding window in three of four layers",
    model_types: &["cwm"],
    architectures: &["CwmForCausalLM", "CwmModel"],
    math: Math { window: Window::FirstFull { period: 4 }, ..Math::LLAMA },
    ..llama::FAMILY
};
