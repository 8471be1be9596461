//! MiMo-V2-Flash.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS};
use super::description::{Family, Moe};
use super::llama;
use super::math::{Math, Routing, Window};
use super::role::Role::Router;

/// The description.
pub const FAMILY: Family = Family {
    name: "mimo_v2_flash",
    summary: "MiMo-V2-Flash: sinks and more key heads in sliding layers, narrow values, experts as in DeepSeek V3",
    model_types: &["mimo_v2_flash"],
    architectures: &["MiMoV2FlashForCausalLM", "MiMoV2FlashModel"],
    moe: Some(Moe {
        routing: &[(Router, "mlp.gate")],
        experts: &[EXPERTS, FUSED_EXPERTS],
        shared: &[],
        rule: Routing::SigmoidGroups,
    }),
    parameters: &["self_attn.attention_sink_bias", "mlp.gate.e_score_correction_bias"],
    math: Math {
        window: Window::FirstAndEvery { period: 6 },
        sliding_has_more: true,
        value_scale: Some(("attention_value_scale", 0.707)),
        ..Math::LLAMA
    },
    keep: &["lm_head", "*mlp.gate"],
    in_memory: &[("attention_sink_bias", "sinks")],
    ..llama::FAMILY
};
