//! Hunyuan 3.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS, PRE_AND_QK_NORMS};
use super::description::{Family, Moe};
use super::llama;
use super::math::Routing;
use super::role::Role::{Down, Gate, Router, Up};

/// The description.
pub const FAMILY: Family = Family {
    name: "hy_v3",
    summary: "Hunyuan 3: query and key norms, experts as in DeepSeek V3",
    model_types: &["hy_v3"],
    architectures: &["HYV3ForCausalLM", "HYV3Model"],
    moe: Some(Moe {
        // transformers renames `router.gate` to `gate` in memory.
        routing: &[(Router, "mlp.router.gate"), (Router, "mlp.gate")],
        experts: &[EXPERTS, FUSED_EXPERTS],
        shared: &[
            (Gate, "mlp.shared_mlp.gate_proj"),
            (Up, "mlp.shared_mlp.up_proj"),
            (Down, "mlp.shared_mlp.down_proj"),
            (Gate, "mlp.shared_experts.gate_proj"),
            (Up, "mlp.shared_experts.up_proj"),
            (Down, "mlp.shared_experts.down_proj"),
        ],
        rule: Routing::SigmoidGroups,
    }),
    norms: PRE_AND_QK_NORMS,
    parameters: &["mlp.expert_bias"],
    keep: &["lm_head", "*.router.gate", "*mlp.gate"],
    in_memory: &[("shared_mlp", "shared_experts")],
    ..llama::FAMILY
};
