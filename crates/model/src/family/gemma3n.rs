//! Gemma 3n, text-only and inside the multimodal checkpoints.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{GATED_MLP, MODEL_TRUNK};
use super::description::{Family, Trunk};
use super::math::{AttentionScale, Math, Window};
use super::role::NormKind;
use super::role::NormSite::{Final, LaneRouter, LayerInputOutput, LayerInputs, LowRankOutput};
use super::role::Role::{self, LaneCorrection, LaneInput, LaneOutput, LanePrediction, LowRankDown, LowRankUp};
use super::{gemma3, gemma4};

/// The description.
pub const FAMILY: Family = Family {
    name: "gemma3n",
    summary: "Gemma 3n: several residual streams, inputs of every layer, shared keys and values, sparse activations",
    model_types: &["gemma3n_text", "gemma3n"],
    architectures: &["Gemma3nForCausalLM", "Gemma3nTextModel", "Gemma3nForConditionalGeneration"],
    trunk: Trunk {
        layer_inputs: Some("embed_tokens_per_layer"),
        norms: &[(Final, "norm"), (LayerInputs, "per_layer_projection_norm")],
        linears: &[
            (Role::LayerInputs, "per_layer_model_projection"),
            (LaneInput, "altup_projections.{}"),
            (LaneOutput, "altup_unembed_projections.{}"),
        ],
        ..MODEL_TRUNK
    },
    mlp: &[
        GATED_MLP[0],
        GATED_MLP[1],
        GATED_MLP[2],
        (LowRankDown, "laurel.linear_left"),
        (LowRankUp, "laurel.linear_right"),
        (Role::LaneRouter, "altup.modality_router"),
        (LanePrediction, "altup.prediction_coefs"),
        (LaneCorrection, "altup.correction_coefs"),
        (Role::LayerInputGate, "per_layer_input_gate"),
        (Role::LayerInputOutput, "per_layer_projection"),
    ],
    norms: &[
        (LaneRouter, "altup.router_norm"),
        gemma3::FAMILY.norms[0],
        gemma3::FAMILY.norms[1],
        gemma3::FAMILY.norms[2],
        (LowRankOutput, "laurel.post_laurel_norm"),
        gemma3::FAMILY.norms[3],
        gemma3::FAMILY.norms[4],
        gemma3::FAMILY.norms[5],
        (LayerInputOutput, "post_per_layer_input_norm"),
    ],
    moe: None,
    norm_kind: NormKind::Rms,
    parameters: &["altup.correct_output_scale"],
    math: Math {
        attention_scale: AttentionScale::One,
        shares_keys: true,
        value_norm: true,
        window: Window::Alternating { period: 5 },
        ..gemma3::FAMILY.math
    },
    keep: &["*vision_tower*", "*embed_vision*", "*audio_tower*", "*embed_audio*", "*altup*", "*lm_head"],
    ..gemma4::FAMILY
};
