//! dots.llm1.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{PRE_AND_QK_NORMS, SELF_ATTENTION};
use super::deepseek_v3;
use super::description::Family;
use super::math::{Math, Window};

/// The description.
pub const FAMILY: Family = Family {
    name: "dots1",
    summary: "dots.llm1: attention of Qwen3, experts as in DeepSeek V3",
    model_types: &["dots1"],
    architectures: &["Dots1ForCausalLM", "Dots1Model"],
    attention: SELF_ATTENTION,
    norms: PRE_AND_QK_NORMS,
    math: Math { window: Window::FromLayer, ..Math::LLAMA },
    keep: &["lm_head", "*mlp.gate"],
    ..deepseek_v3::FAMILY
};
