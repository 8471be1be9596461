//! A.X K1.
//!
//! Data only; the fields are explained in [`super::description`].

use super::deepseek_v3;
use super::description::Family;
use super::math::Math;
use super::role::NormSite::{AttentionInput, FeedForwardInput, FeedForwardOutput, KeyValueLatent, QueryLatent};

/// The description.
pub const FAMILY: Family = Family {
    name: "axk1",
    summary: "A.X K1: DeepSeek V3 with a norm behind the experts",
    model_types: &["axk1"],
    architectures: &["AXK1ForCausalLM", "AXK1Model"],
    norms: &[
        (AttentionInput, "input_layernorm"),
        (QueryLatent, "self_attn.q_a_layernorm"),
        (KeyValueLatent, "self_attn.kv_a_layernorm"),
        (FeedForwardInput, "post_attention_layernorm"),
        (FeedForwardOutput, "post_mlp_layernorm"),
        // Where transformers has it in memory.
        (FeedForwardOutput, "mlp.post_mlp_layernorm"),
    ],
    math: Math { only_experts_have_output_norm: true, ..deepseek_v3::FAMILY.math },
    keep: &["lm_head", "*mlp.gate"],
    in_memory: &[("post_mlp_layernorm", "mlp.post_mlp_layernorm")],
    ..deepseek_v3::FAMILY
};
