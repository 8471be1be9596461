//! MiniMax M3, text-only: its class finds all experts of a block in two tensors, and no others.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{FUSED_EXPERTS, SHARED_EXPERTS};
use super::description::{Family, Moe};
use super::math::Routing;
use super::minimax_m3;
use super::role::Role::{GateUp, Router};

/// The description.
pub const FAMILY: Family = Family {
    name: "minimax_m3_text",
    summary: "MiniMax M3 without its part for images, all experts of a block in one tensor",
    model_types: &["minimax_m3_vl_text"],
    architectures: &["MiniMaxM3VLForCausalLM", "MiniMaxM3VLTextModel"],
    moe: Some(Moe {
        routing: &[(Router, "mlp.gate")],
        experts: &[FUSED_EXPERTS],
        shared: &[(GateUp, "mlp.shared_experts.gate_up_proj"), SHARED_EXPERTS[2]],
        rule: Routing::SigmoidGroups,
    }),
    ..minimax_m3::FAMILY
};
