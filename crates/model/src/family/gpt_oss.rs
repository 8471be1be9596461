//! gpt-oss.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{ExpertLayout, ExpertStorage, Family, Moe};
use super::llama;
use super::math::{Activation, ActivationRule, Math, Routing, Window};
use super::role::Role::{Down, GateUp, Router};
use super::role::{Orientation, RowOrder};

/// The description.
pub const FAMILY: Family = Family {
    name: "gpt_oss",
    summary: "gpt-oss: attention sinks, all experts of a block in one tensor, biases everywhere",
    model_types: &["gpt_oss"],
    architectures: &["GptOssForCausalLM", "GptOssModel"],
    mlp: &[],
    moe: Some(Moe {
        routing: &[(Router, "mlp.router")],
        experts: &[ExpertLayout {
            storage: ExpertStorage::Fused,
            orientation: Orientation::InOut,
            gate_up_rows: RowOrder::Interleaved,
            linears: &[(GateUp, "mlp.experts.gate_up_proj"), (Down, "mlp.experts.down_proj")],
        }],
        shared: &[],
        rule: Routing::TopThenSoftmax,
    }),
    parameters: &["self_attn.sinks"],
    math: Math {
        activation: ActivationRule::Fixed(Activation::ClampedSwiglu),
        window: Window::Alternating { period: 2 },
        ..Math::LLAMA
    },
    keep: &["lm_head", "*router*"],
    ..llama::FAMILY
};
