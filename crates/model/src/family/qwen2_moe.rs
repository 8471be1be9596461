//! Qwen1.5-MoE and Qwen2-MoE.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS};
use super::description::{Family, Moe};
use super::math::Routing;
use super::qwen2;
use super::role::Role::{Down, Gate, Router, SharedGate, Up};

/// The description.
pub const FAMILY: Family = Family {
    name: "qwen2_moe",
    summary: "Qwen2-MoE: routed experts and a gated shared expert",
    model_types: &["qwen2_moe"],
    architectures: &["Qwen2MoeForCausalLM", "Qwen2MoeModel"],
    moe: Some(Moe {
        routing: &[(Router, "mlp.gate"), (SharedGate, "mlp.shared_expert_gate")],
        experts: &[EXPERTS, FUSED_EXPERTS],
        shared: &[
            (Gate, "mlp.shared_expert.gate_proj"),
            (Up, "mlp.shared_expert.up_proj"),
            (Down, "mlp.shared_expert.down_proj"),
        ],
        rule: Routing::SoftmaxThenTopIfNormalised,
    }),
    keep: &["lm_head", "*.gate", "*.shared_expert_gate"],
    ..qwen2::FAMILY
};
