//! Granite 3 mixture-of-experts models.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS};
use super::description::{ExpertLayout, Family, Moe};
use super::granite;
use super::math::Routing;
use super::role::Role::{Down, Gate, GateUp, Router, Up};

/// The description.
pub const FAMILY: Family = Family {
    name: "granitemoe",
    summary: "Granite 3 MoE: all experts of a block in one tensor",
    model_types: &["granitemoe"],
    architectures: &["GraniteMoeForCausalLM", "GraniteMoeModel"],
    mlp: &[],
    moe: Some(Moe {
        routing: &[(Router, "block_sparse_moe.router.layer")],
        experts: &[
            ExpertLayout {
                linears: &[(GateUp, "block_sparse_moe.input_linear"), (Down, "block_sparse_moe.output_linear")],
                ..FUSED_EXPERTS
            },
            ExpertLayout {
                linears: &[
                    (Gate, "block_sparse_moe.experts.{}.gate_proj"),
                    (Up, "block_sparse_moe.experts.{}.up_proj"),
                    (Down, "block_sparse_moe.experts.{}.down_proj"),
                ],
                ..EXPERTS
            },
        ],
        shared: &[],
        rule: Routing::TopThenSoftmax,
    }),
    keep: &["lm_head", "*router*"],
    ..granite::FAMILY
};
