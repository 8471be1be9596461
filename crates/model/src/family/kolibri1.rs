//! Kolibri 1.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS, SELF_ATTENTION, SHARED_EXPERTS};
use super::description::{Family, Moe, Norms};
use super::llama;
use super::math::{Math, Pairing, Positions, RotaryLayers, Routing, Window};
use super::role::NormSite::{self, AttentionInput, AttentionOutput, FeedForwardInput, FeedForwardOutput};
use super::role::Role::Router;

/// The norms behind branches have other names where transformers has them in memory.
const NORMS: Norms = &[
    (AttentionInput, "input_layernorm"),
    (NormSite::Query, "self_attn.q_norm"),
    (NormSite::Key, "self_attn.k_norm"),
    (AttentionOutput, "post_attn_norm"),
    (AttentionOutput, "post_self_attn_layernorm"),
    (FeedForwardInput, "post_attention_layernorm"),
    (FeedForwardOutput, "post_ffn_norm"),
    (FeedForwardOutput, "post_mlp_layernorm"),
];

/// The description.
pub const FAMILY: Family = Family {
    name: "kolibri1",
    summary: "Kolibri 1: windows in four of five layers, rotary embeddings only there, norms before and after each branch, many experts",
    model_types: &["kolibri1"],
    architectures: &["Kolibri1ForCausalLM", "Kolibri1Model"],
    attention: SELF_ATTENTION,
    mlp: &[],
    moe: Some(Moe {
        routing: &[(Router, "mlp.gate")],
        experts: &[EXPERTS, FUSED_EXPERTS],
        shared: SHARED_EXPERTS,
        rule: Routing::TopCorrectedThenSigmoid,
    }),
    norms: NORMS,
    parameters: &["moe.router.expert_bias"],
    math: Math {
        positions: Positions::Rotary { pairing: Pairing::Halves, partial: 1.0, layers: RotaryLayers::SlidingIfAny },
        window: Window::Alternating { period: 5 },
        ..Math::LLAMA
    },
    keep: &["lm_head", "*mlp.gate"],
    ..llama::FAMILY
};
