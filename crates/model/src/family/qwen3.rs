//! Qwen3 dense models, and the language model inside Qwen3-VL.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::PRE_AND_QK_NORMS;
use super::description::Family;
use super::qwen2;

/// The description.
pub const FAMILY: Family = Family {
    name: "qwen3",
    summary: "Qwen3 dense: query and key norms in every head",
    model_types: &["qwen3", "qwen3_vl", "qwen3_vl_text"],
    architectures: &["Qwen3ForCausalLM", "Qwen3Model", "Qwen3VLForConditionalGeneration"],
    norms: PRE_AND_QK_NORMS,
    ..qwen2::FAMILY
};
