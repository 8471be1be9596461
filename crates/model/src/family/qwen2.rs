//! Qwen 1.5 to 2.5, and the language model inside Qwen2-VL and Qwen2.5-VL.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{Math, Window};

/// The description.
pub const FAMILY: Family = Family {
    name: "qwen2",
    summary: "Qwen 1.5 to 2.5: Llama with biases on q, k and v",
    model_types: &["qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"],
    architectures: &[
        "Qwen2ForCausalLM",
        "Qwen2Model",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
    ],
    math: Math { window: Window::FromLayer, ..Math::LLAMA },
    ..llama::FAMILY
};
