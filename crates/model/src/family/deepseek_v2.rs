//! DeepSeek V2, V2-Lite and V2.5.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS, SHARED_EXPERTS};
use super::description::{Family, Moe};
use super::llama;
use super::math::{Math, Pairing, Positions, Routing};
use super::role::NormSite::{AttentionInput, FeedForwardInput, KeyValueLatent, QueryLatent};
use super::role::Role::{KeyValueDown, KeyValueUp, Output, Query, QueryDown, QueryUp, Router};

/// The description.
pub const FAMILY: Family = Family {
    name: "deepseek_v2",
    summary: "DeepSeek V2: multi-head latent attention, routed and shared experts",
    model_types: &["deepseek_v2"],
    architectures: &["DeepseekV2ForCausalLM", "DeepseekV2Model"],
    attention: &[
        // The Lite models have no query latent.
        (Query, "self_attn.q_proj"),
        (QueryDown, "self_attn.q_a_proj"),
        (QueryUp, "self_attn.q_b_proj"),
        (KeyValueDown, "self_attn.kv_a_proj_with_mqa"),
        (KeyValueUp, "self_attn.kv_b_proj"),
        (Output, "self_attn.o_proj"),
    ],
    moe: Some(Moe {
        routing: &[(Router, "mlp.gate")],
        experts: &[EXPERTS, FUSED_EXPERTS],
        shared: SHARED_EXPERTS,
        rule: Routing::SoftmaxGroups,
    }),
    norms: &[
        (AttentionInput, "input_layernorm"),
        (QueryLatent, "self_attn.q_a_layernorm"),
        (KeyValueLatent, "self_attn.kv_a_layernorm"),
        (FeedForwardInput, "post_attention_layernorm"),
    ],
    math: Math { positions: Positions::rotary(Pairing::Neighbours, 1.0), ..Math::LLAMA },
    keep: &["lm_head", "*self_attn*", "*mlp.gate"],
    ..llama::FAMILY
};
