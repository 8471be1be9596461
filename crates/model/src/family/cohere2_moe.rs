//! Cohere Command A+.
//!
//! Data only; the fields are explained in [`super::description`].

use super::cohere2;
use super::common::{EXPERTS, FUSED_EXPERTS, SHARED_EXPERTS};
use super::description::{Family, Moe};
use super::math::{Math, Pairing, Positions, RotaryLayers, Routing};
use super::role::Role::Router;

/// The description.
pub const FAMILY: Family = Family {
    name: "cohere2_moe",
    summary: "Command A+: Cohere 2 with routed and shared experts",
    model_types: &["cohere2_moe"],
    architectures: &["Cohere2MoeForCausalLM", "Cohere2MoeModel"],
    moe: Some(Moe {
        routing: &[(Router, "mlp.gate")],
        experts: &[EXPERTS, FUSED_EXPERTS],
        shared: SHARED_EXPERTS,
        rule: Routing::TopThenStated,
    }),
    math: Math {
        positions: Positions::Rotary {
            pairing: Pairing::Neighbours,
            partial: 1.0,
            layers: RotaryLayers::SlidingOrDense,
        },
        rms_norm_if_stated: true,
        averages_shared_experts: true,
        ..cohere2::FAMILY.math
    },
    keep: &["lm_head", "*.gate"],
    ..cohere2::FAMILY
};
