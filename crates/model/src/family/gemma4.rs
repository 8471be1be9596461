//! Gemma 4, text-only and inside the multimodal checkpoints.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{FUSED_EXPERTS, GATED_MLP, MODEL_TRUNK};
use super::description::{ExpertLayout, Family, Moe, Trunk};
use super::gemma3;
use super::math::{AttentionScale, Math, Routing};
use super::role::NormKind;
use super::role::Role::{Down, GateUp, Router, Unknown};

/// The description.
pub const FAMILY: Family = Family {
    name: "gemma4",
    summary: "Gemma 4: norms of values, wider heads in full layers; evaluated without per-layer inputs and experts only",
    model_types: &["gemma4_text", "gemma4"],
    architectures: &["Gemma4ForCausalLM", "Gemma4TextModel", "Gemma4ForConditionalGeneration"],
    trunk: Trunk { linears: &[(Unknown, "per_layer_model_projection")], ..MODEL_TRUNK },
    mlp: &[
        GATED_MLP[0],
        GATED_MLP[1],
        GATED_MLP[2],
        // Of models with an embedding for each layer.
        (Unknown, "per_layer_input_gate"),
        (Unknown, "per_layer_projection"),
    ],
    moe: Some(Moe {
        routing: &[(Router, "router.proj")],
        experts: &[ExpertLayout {
            linears: &[(GateUp, "experts.gate_up_proj"), (Down, "experts.down_proj")],
            ..FUSED_EXPERTS
        }],
        shared: &[],
        rule: Routing::SoftmaxThenTop,
    }),
    norm_kind: NormKind::Rms,
    parameters: &["layer_scalar", "router.scale", "router.per_expert_scale"],
    math: Math { attention_scale: AttentionScale::One, full_heads: true, value_norm: true, ..gemma3::FAMILY.math },
    keep: &[
        "*vision_tower*",
        "*embed_vision*",
        "*audio_tower*",
        "*embed_audio*",
        "*multi_modal_projector*",
        "*lm_head",
        "*router.proj",
    ],
    ..gemma3::FAMILY
};
