//! ERNIE 4.5, models with experts.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS, SHARED_EXPERTS};
use super::description::{Family, Moe};
use super::ernie4_5;
use super::math::Routing;
use super::role::Role::Router;

/// The description.
pub const FAMILY: Family = Family {
    name: "ernie4_5_moe",
    summary: "ERNIE 4.5 MoE: routed and shared experts, softmax routing with a correction bias",
    model_types: &["ernie4_5_moe"],
    architectures: &["Ernie4_5_MoeForCausalLM", "Ernie4_5_MoeModel"],
    moe: Some(Moe {
        routing: &[(Router, "mlp.gate")],
        experts: &[EXPERTS, FUSED_EXPERTS],
        shared: SHARED_EXPERTS,
        rule: Routing::SoftmaxCorrected,
    }),
    parameters: &["mlp.moe_statics.e_score_correction_bias", "mlp.gate.moe_statics.e_score_correction_bias"],
    keep: &["lm_head", "*.gate"],
    ..ernie4_5::FAMILY
};
