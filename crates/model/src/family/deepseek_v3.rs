//! DeepSeek V3 and R1.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS, SHARED_EXPERTS};
use super::deepseek_v2;
use super::description::{Family, Moe};
use super::math::Routing;
use super::role::Role::Router;

/// The description.
pub const FAMILY: Family = Family {
    name: "deepseek_v3",
    summary: "DeepSeek V3, R1: V2 with sigmoid routing and its correction bias",
    model_types: &["deepseek_v3"],
    architectures: &["DeepseekV3ForCausalLM", "DeepseekV3Model"],
    moe: Some(Moe {
        routing: &[(Router, "mlp.gate")],
        experts: &[EXPERTS, FUSED_EXPERTS],
        shared: SHARED_EXPERTS,
        rule: Routing::SigmoidGroups,
    }),
    parameters: &["mlp.gate.e_score_correction_bias"],
    ..deepseek_v2::FAMILY
};
