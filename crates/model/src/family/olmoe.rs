//! OLMoE.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS, PRE_AND_QK_NORMS};
use super::description::{Family, Moe};
use super::llama;
use super::math::{Math, QueryKeyNorm, Routing};
use super::role::Role::Router;

/// The description.
pub const FAMILY: Family = Family {
    name: "olmoe",
    summary: "OLMoE: experts in every block, norms over all queries and keys",
    model_types: &["olmoe"],
    architectures: &["OlmoeForCausalLM", "OlmoeModel"],
    mlp: &[],
    moe: Some(Moe {
        routing: &[(Router, "mlp.gate")],
        experts: &[EXPERTS, FUSED_EXPERTS],
        shared: &[],
        rule: Routing::SoftmaxThenTopIfNormalised,
    }),
    norms: PRE_AND_QK_NORMS,
    math: Math { query_key_norm: QueryKeyNorm::AllHeads, ..Math::LLAMA },
    keep: &["lm_head", "*.gate"],
    ..llama::FAMILY
};
