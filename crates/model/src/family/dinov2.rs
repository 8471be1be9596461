//! DINOv2.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{DINO_NORMS, VIT_ATTENTION};
use super::description::{Family, Trunk};
use super::encoder::{Encoder, ImageTokens, LearnedToken, Readout, ReadoutRows, ReadoutStep};
use super::math::{Activation, ActivationRule, Math, Positions};
use super::role::NormSite::Final;
use super::role::Role::{Down, GateUp, Up};
use super::role::{NormKind, Orientation, RowOrder};

/// What is read out of the last hidden states.
pub(super) const READOUTS: &[Readout] = &[Readout {
    name: "logits",
    class: None,
    rows: ReadoutRows::FirstAndMeanOfPatches,
    steps: &[ReadoutStep::Linear("classifier")],
}];

/// The description.
pub const FAMILY: Family = Family {
    name: "dinov2",
    summary: "DINOv2: ViT with scaled branches, and gated networks in the largest models",
    model_types: &["dinov2"],
    architectures: &["Dinov2Model", "Dinov2ForImageClassification"],
    trunk: Trunk {
        path: "dinov2",
        embedding: "embeddings.patch_embeddings.projection",
        positions: Some("embeddings.position_embeddings"),
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
        blocks: "encoder.layer",
        norms: &[(Final, "layernorm")],
        linears: &[],
        heads: &[],
    },
    attention: VIT_ATTENTION,
    recurrent: None,
    mlp: &[(GateUp, "mlp.weights_in"), (Up, "mlp.fc1"), (Down, "mlp.fc2"), (Down, "mlp.weights_out")],
    moe: None,
    norms: DINO_NORMS,
    norm_kind: NormKind::LayerNorm,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::Stacked,
    parameters: &["layer_scale1.lambda1", "layer_scale2.lambda1"],
    extra: None,
    cross_attention: None,
    encoder: Some(Encoder {
        images: Some(ImageTokens {
            learned: &[LearnedToken { path: "embeddings.cls_token", has_positions: true }],
            must_be_square: true,
            unread: &["embeddings.mask_token"],
        }),
        readouts: READOUTS,
        ..Encoder::PLAIN
    }),
    math: Math {
        activation: ActivationRule::SiluIf("use_swiglu_ffn", Activation::Gelu),
        positions: Positions::Learned { offset: 0 },
        gated_if: Some("use_swiglu_ffn"),
        layer_scales: Some(("layer_scale1.lambda1", "layer_scale2.lambda1")),
        ..Math::LLAMA
    },
    keep: &[],
    config_like: None,
    in_memory: &[],
};
