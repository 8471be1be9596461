//! Gemma 4, text-only and inside the multimodal checkpoints.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS, GATED_MLP, MODEL_TRUNK};
use super::description::{ExpertLayout, Family, Moe, Trunk};
use super::gemma3;
use super::math::{AttentionScale, Math, Routing};
use super::role::NormKind;
use super::role::NormSite::{DenseOutput, Final, LayerInputOutput, LayerInputs, RoutedInput, RoutedOutput};
use super::role::Role::{self, Down, Gate, GateUp, LayerInputGate, Router, Up};

/// The description.
pub const FAMILY: Family = Family {
    name: "gemma4",
    summary: "Gemma 4: norms of values, wide heads in full layers, perhaps inputs of layers, shared keys, experts beside an MLP",
    model_types: &["gemma4_text", "gemma4"],
    architectures: &["Gemma4ForCausalLM", "Gemma4TextModel", "Gemma4ForConditionalGeneration"],
    trunk: Trunk {
        layer_inputs: Some("embed_tokens_per_layer"),
        norms: &[(Final, "norm"), (LayerInputs, "per_layer_projection_norm")],
        linears: &[(Role::LayerInputs, "per_layer_model_projection")],
        ..MODEL_TRUNK
    },
    mlp: &[
        GATED_MLP[0],
        GATED_MLP[1],
        GATED_MLP[2],
        (LayerInputGate, "per_layer_input_gate"),
        (Role::LayerInputOutput, "per_layer_projection"),
    ],
    moe: Some(Moe {
        routing: &[(Router, "router.proj")],
        experts: &[
            ExpertLayout { linears: &[(GateUp, "experts.gate_up_proj"), (Down, "experts.down_proj")], ..FUSED_EXPERTS },
            ExpertLayout {
                linears: &[(Gate, "experts.{}.gate_proj"), (Up, "experts.{}.up_proj"), (Down, "experts.{}.down_proj")],
                ..EXPERTS
            },
        ],
        shared: &[],
        rule: Routing::SoftmaxThenTop,
    }),
    norms: &[
        gemma3::FAMILY.norms[0],
        gemma3::FAMILY.norms[1],
        gemma3::FAMILY.norms[2],
        gemma3::FAMILY.norms[3],
        gemma3::FAMILY.norms[4],
        (DenseOutput, "post_feedforward_layernorm_1"),
        (RoutedInput, "pre_feedforward_layernorm_2"),
        (RoutedOutput, "post_feedforward_layernorm_2"),
        gemma3::FAMILY.norms[5],
        (LayerInputOutput, "post_per_layer_input_norm"),
    ],
    norm_kind: NormKind::Rms,
    parameters: &["layer_scalar", "router.scale", "router.per_expert_scale"],
    math: Math {
        attention_scale: AttentionScale::One,
        full_heads: true,
        shares_keys: true,
        value_norm: true,
        ..gemma3::FAMILY.math
    },
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
