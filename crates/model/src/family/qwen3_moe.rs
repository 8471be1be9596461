//! Qwen3 mixture-of-experts models.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS};
use super::description::{Family, Moe};
use super::math::Routing;
use super::qwen3;
use super::role::Role::Router;

/// The description.
pub const FAMILY: Family = Family {
    name: "qwen3_moe",
    summary: "Qwen3-MoE: Qwen3 with routed experts, no shared expert",
    model_types: &["qwen3_moe"],
    architectures: &["Qwen3MoeForCausalLM", "Qwen3MoeModel"],
    moe: Some(Moe {
        routing: &[(Router, "mlp.gate")],
        experts: &[EXPERTS, FUSED_EXPERTS],
        shared: &[],
        rule: Routing::SoftmaxThenTopIfNormalised,
    }),
    keep: &["lm_head", "*.gate"],
    ..qwen3::FAMILY
};
