//! AFMoE: Trinity of Arcee AI.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS, SHARED_EXPERTS};
use super::description::{Family, Moe};
use super::llama;
use super::math::{EmbeddingScale, Math, Pairing, Positions, RotaryLayers, Routing, Window};
use super::role::NormSite::{self, AttentionInput, AttentionOutput, FeedForwardInput, FeedForwardOutput};
use super::role::Role::{HeadGate, Key, Output, Query, Router, Value};

/// The description.
pub const FAMILY: Family = Family {
    name: "afmoe",
    summary: "AFMoE (Trinity): gated attention, norms before and after each branch, experts as in DeepSeek V3",
    model_types: &["afmoe"],
    architectures: &["AfmoeForCausalLM", "AfmoeModel"],
    attention: &[
        (Query, "self_attn.q_proj"),
        (Key, "self_attn.k_proj"),
        (Value, "self_attn.v_proj"),
        (HeadGate, "self_attn.gate_proj"),
        (Output, "self_attn.o_proj"),
    ],
    moe: Some(Moe {
        routing: &[(Router, "mlp.router.gate")],
        experts: &[EXPERTS, FUSED_EXPERTS],
        shared: SHARED_EXPERTS,
        rule: Routing::SigmoidGroups,
    }),
    norms: &[
        (AttentionInput, "input_layernorm"),
        (NormSite::Query, "self_attn.q_norm"),
        (NormSite::Key, "self_attn.k_norm"),
        (AttentionOutput, "post_attention_layernorm"),
        (FeedForwardInput, "pre_mlp_layernorm"),
        (FeedForwardOutput, "post_mlp_layernorm"),
    ],
    parameters: &["mlp.expert_bias"],
    math: Math {
        positions: Positions::Rotary { pairing: Pairing::Halves, partial: 1.0, layers: RotaryLayers::Sliding },
        window: Window::Alternating { period: 4 },
        embedding_scale: EmbeddingScale::RootHiddenIf("mup_enabled"),
        ..Math::LLAMA
    },
    keep: &["lm_head", "*.router.gate"],
    ..llama::FAMILY
};
