//! The mixtures of experts of LFM2.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::EXPERTS;
use super::description::{ExpertLayout, Family, Moe};
use super::lfm2;
use super::math::Routing;
use super::role::Role::{Down, Gate, Router, Up};

/// The description.
pub const FAMILY: Family = Family {
    name: "lfm2_moe",
    summary: "LFM2 MoE: LFM2 with routed experts behind the first blocks",
    model_types: &["lfm2_moe"],
    architectures: &["Lfm2MoeForCausalLM", "Lfm2MoeModel"],
    moe: Some(Moe {
        routing: &[(Router, "feed_forward.gate")],
        experts: &[ExpertLayout {
            linears: &[
                (Gate, "feed_forward.experts.{}.w1"),
                (Up, "feed_forward.experts.{}.w3"),
                (Down, "feed_forward.experts.{}.w2"),
            ],
            ..EXPERTS
        }],
        shared: &[],
        rule: Routing::SigmoidTopIfNormalised,
    }),
    parameters: &["feed_forward.expert_bias"],
    keep: &["lm_head", "*conv.in_proj", "*conv.out_proj", "*feed_forward.gate"],
    ..lfm2::FAMILY
};
