//! The mixtures of experts of Qwen3.5, text-only and inside the multimodal checkpoints.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Moe};
use super::math::Routing;
use super::{qwen2_moe, qwen3_5};

/// The description.
pub const FAMILY: Family = Family {
    name: "qwen3_5_moe",
    summary: "Qwen3.5 and 3.6 MoE: Qwen3.5 with routed experts and a gated shared expert in every block",
    model_types: &["qwen3_5_moe_text", "qwen3_5_moe"],
    architectures: &[
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeTextModel",
        "Qwen3_5MoeModel",
        "Qwen3_5MoeForConditionalGeneration",
    ],
    mlp: &[],
    moe: match qwen2_moe::FAMILY.moe {
        Some(moe) => Some(Moe { rule: Routing::SoftmaxThenTop, ..moe }),
        None => None,
    },
    keep: &[
        "lm_head",
        "model.visual.*",
        "mtp.*",
        "*mlp.gate",
        "*shared_expert_gate*",
        "*.linear_attn.*",
        "*.self_attn.*",
        "*.shared_expert.*",
    ],
    ..qwen3_5::FAMILY
};
