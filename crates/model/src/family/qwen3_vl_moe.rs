//! The language model of Qwen3-VL-MoE.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS, TRANSPOSED_EXPERTS};
use super::description::{Family, Moe};
use super::math::Routing;
use super::qwen3_moe;
use super::role::Role::Router;

/// The description.
pub const FAMILY: Family = Family {
    name: "qwen3_vl_moe",
    summary: "Qwen3-VL-MoE: Qwen3-MoE beside a vision tower, published with all experts of a block in one tensor",
    model_types: &["qwen3_vl_moe", "qwen3_vl_moe_text"],
    architectures: &["Qwen3VLMoeForConditionalGeneration", "Qwen3VLMoeTextModel"],
    moe: Some(Moe {
        routing: &[(Router, "mlp.gate")],
        experts: &[FUSED_EXPERTS, EXPERTS, TRANSPOSED_EXPERTS],
        shared: &[],
        rule: Routing::SoftmaxThenTop,
    }),
    keep: &["lm_head", "*mlp.gate", "*.visual.*"],
    ..qwen3_moe::FAMILY
};
