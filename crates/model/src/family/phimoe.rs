//! Phi-3.5-MoE.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::PRE_NORMS;
use super::common::{BLOCK_SPARSE_EXPERTS, EXPERTS, FUSED_EXPERTS};
use super::description::{Family, Moe};
use super::math::Routing;
use super::mixtral;
use super::role::NormKind;
use super::role::Role::Router;

/// The description.
pub const FAMILY: Family = Family {
    name: "phimoe",
    summary: "Phi-3.5-MoE: Mixtral's layout with LayerNorm and SparseMixer routing",
    model_types: &["phimoe"],
    architectures: &["PhimoeForCausalLM", "PhimoeModel", "PhiMoEForCausalLM"],
    moe: Some(Moe {
        routing: &[(Router, "block_sparse_moe.gate"), (Router, "mlp.gate")],
        experts: &[BLOCK_SPARSE_EXPERTS, EXPERTS, FUSED_EXPERTS],
        shared: &[],
        rule: Routing::SparseMixer,
    }),
    norms: PRE_NORMS,
    norm_kind: NormKind::LayerNorm,
    in_memory: &[],
    ..mixtral::FAMILY
};
