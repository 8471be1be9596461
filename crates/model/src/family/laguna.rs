//! Laguna.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS, PRE_AND_QK_NORMS};
use super::description::{Family, Moe};
use super::llama;
use super::math::{HeadGate, Math, Routing};
use super::role::Role::{self, Down, Gate, Key, Output, Query, Router, Up, Value};

/// The description.
pub const FAMILY: Family = Family {
    name: "laguna",
    summary: "Laguna: gated attention whose heads differ in number by layer, query and key norms, sigmoid routing",
    model_types: &["laguna"],
    architectures: &["LagunaForCausalLM", "LagunaModel"],
    attention: &[
        (Query, "self_attn.q_proj"),
        (Key, "self_attn.k_proj"),
        (Value, "self_attn.v_proj"),
        (Role::HeadGate, "self_attn.g_proj"),
        (Output, "self_attn.o_proj"),
    ],
    moe: Some(Moe {
        routing: &[(Router, "mlp.gate")],
        experts: &[EXPERTS, FUSED_EXPERTS],
        // transformers renames `shared_expert` to `shared_experts` in memory.
        shared: &[
            (Gate, "mlp.shared_expert.gate_proj"),
            (Up, "mlp.shared_expert.up_proj"),
            (Down, "mlp.shared_expert.down_proj"),
            (Gate, "mlp.shared_experts.gate_proj"),
            (Up, "mlp.shared_experts.up_proj"),
            (Down, "mlp.shared_experts.down_proj"),
        ],
        rule: Routing::SigmoidGroups,
    }),
    norms: PRE_AND_QK_NORMS,
    parameters: &["mlp.experts.e_score_correction_bias", "mlp.gate.e_score_correction_bias"],
    math: Math { head_gate: HeadGate::Softplus, ..Math::LLAMA },
    keep: &["lm_head", "*mlp.gate", "*self_attn.g_proj"],
    in_memory: &[("mlp.shared_expert.", "mlp.shared_experts.")],
    ..llama::FAMILY
};
