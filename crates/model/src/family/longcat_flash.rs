//! LongCat Flash.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS};
use super::deepseek_v2;
use super::description::{Family, Moe};
use super::math::{Math, Routing};
use super::role::NormSite::{AttentionInput, FeedForwardInput, KeyValueLatent, QueryLatent};
use super::role::Role::{Down, Gate, KeyValueDown, KeyValueUp, Output, QueryDown, QueryUp, Router, Up};

/// The description.
pub const FAMILY: Family = Family {
    name: "longcat_flash",
    summary: "LongCat Flash: two blocks a layer with experts beside both, some of which compute nothing, scaled latents",
    model_types: &["longcat_flash"],
    architectures: &["LongcatFlashForCausalLM", "LongcatFlashModel"],
    attention: &[
        (QueryDown, "self_attn.{}.q_a_proj"),
        (QueryUp, "self_attn.{}.q_b_proj"),
        (KeyValueDown, "self_attn.{}.kv_a_proj_with_mqa"),
        (KeyValueUp, "self_attn.{}.kv_b_proj"),
        (Output, "self_attn.{}.o_proj"),
    ],
    mlp: &[(Gate, "mlps.{}.gate_proj"), (Up, "mlps.{}.up_proj"), (Down, "mlps.{}.down_proj")],
    moe: Some(Moe {
        routing: &[(Router, "mlp.router.classifier")],
        experts: &[EXPERTS, FUSED_EXPERTS],
        shared: &[],
        rule: Routing::SoftmaxCorrectedScaled,
    }),
    norms: &[
        (AttentionInput, "input_layernorm.{}"),
        (QueryLatent, "self_attn.{}.q_a_layernorm"),
        (KeyValueLatent, "self_attn.{}.kv_a_layernorm"),
        (FeedForwardInput, "post_attention_layernorm.{}"),
    ],
    parameters: &["mlp.router.e_score_correction_bias"],
    math: Math { shortcut_experts: true, scales_latents: true, ..deepseek_v2::FAMILY.math },
    keep: &["lm_head", "*mlp.router.classifier"],
    ..deepseek_v2::FAMILY
};
