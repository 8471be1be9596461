//! Mixtral.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{BLOCK_SPARSE_EXPERTS, EXPERTS, FUSED_EXPERTS};
use super::description::{Family, Moe};
use super::math::Routing;
use super::mistral;
use super::role::Role::Router;

/// The description.
pub const FAMILY: Family = Family {
    name: "mixtral",
    summary: "Mixtral: Mistral with a mixture of experts in every block",
    model_types: &["mixtral"],
    architectures: &["MixtralForCausalLM", "MixtralModel"],
    mlp: &[],
    moe: Some(Moe {
        // Tools that go through transformers 5 in memory rename `block_sparse_moe` to `mlp`.
        routing: &[(Router, "block_sparse_moe.gate"), (Router, "mlp.gate")],
        experts: &[BLOCK_SPARSE_EXPERTS, EXPERTS, FUSED_EXPERTS],
        shared: &[],
        rule: Routing::SoftmaxThenTop,
    }),
    keep: &["lm_head", "*.gate"],
    in_memory: &[("block_sparse_moe", "mlp"), ("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")],
    ..mistral::FAMILY
};
