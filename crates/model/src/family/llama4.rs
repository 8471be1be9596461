//! The language model of Llama 4.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS, MODEL_TRUNK, PRE_NORMS, SELF_ATTENTION};
use super::description::{ExpertLayout, Family, Moe};
use super::llama;
use super::math::{Math, Pairing, Positions, QueryKeyNorm, QueryScale, RotaryLayers, Routing, Window};
use super::role::Orientation;
use super::role::Role::{Down, Gate, GateUp, Router, Up};

/// The description.
pub const FAMILY: Family = Family {
    name: "llama4",
    summary: "Llama 4: chunked attention, layers without rotary embeddings, all experts of a block in one tensor",
    model_types: &["llama4", "llama4_text"],
    architectures: &["Llama4ForConditionalGeneration", "Llama4ForCausalLM", "Llama4TextModel"],
    trunk: MODEL_TRUNK,
    attention: SELF_ATTENTION,
    mlp: &[(Gate, "feed_forward.gate_proj"), (Up, "feed_forward.up_proj"), (Down, "feed_forward.down_proj")],
    moe: Some(Moe {
        routing: &[(Router, "feed_forward.router")],
        experts: &[
            ExpertLayout {
                orientation: Orientation::InOut,
                linears: &[(GateUp, "feed_forward.experts.gate_up_proj"), (Down, "feed_forward.experts.down_proj")],
                ..FUSED_EXPERTS
            },
            ExpertLayout {
                linears: &[
                    (Gate, "feed_forward.experts.{}.gate_proj"),
                    (Up, "feed_forward.experts.{}.up_proj"),
                    (Down, "feed_forward.experts.{}.down_proj"),
                ],
                ..EXPERTS
            },
        ],
        shared: &[
            (Gate, "feed_forward.shared_expert.gate_proj"),
            (Up, "feed_forward.shared_expert.up_proj"),
            (Down, "feed_forward.shared_expert.down_proj"),
        ],
        rule: Routing::TopThenSigmoid,
    }),
    norms: PRE_NORMS,
    math: Math {
        positions: Positions::Rotary { pairing: Pairing::Neighbours, partial: 1.0, layers: RotaryLayers::Listed },
        window: Window::Chunks,
        query_key_norm: QueryKeyNorm::PlainAfterRotary,
        query_scale: QueryScale::UnturnedLayers,
        weighs_expert_inputs: true,
        ..Math::LLAMA
    },
    keep: &["multi_modal_projector*", "*feed_forward.router", "vision_model*", "*lm_head"],
    ..llama::FAMILY
};
