//! The tower for images of CLIP.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{CLIP_ATTENTION, CLIP_MLP, CLIP_NORMS};
use super::description::{Family, Trunk};
use super::encoder::{Encoder, ImageTokens, LearnedToken, Readout, ReadoutRows, ReadoutStep};
use super::math::{Activation, ActivationRule, Math, Positions};
use super::role::NormSite::Embedding;
use super::role::{NormKind, Orientation, RowOrder};

/// What is read out of the last hidden states.
const READOUTS: &[Readout] = &[
    Readout {
        name: "pooled",
        class: Some("CLIPVisionModel"),
        rows: ReadoutRows::First,
        steps: &[ReadoutStep::Norm("post_layernorm")],
    },
    Readout {
        name: "image embedding",
        class: None,
        rows: ReadoutRows::First,
        steps: &[ReadoutStep::Norm("post_layernorm"), ReadoutStep::Linear("visual_projection")],
    },
];

/// The description.
pub const FAMILY: Family = Family {
    name: "clip_vision",
    summary: "CLIP, images: ViT with a norm behind the embeddings and none behind the last block",
    model_types: &["clip_vision_model"],
    architectures: &["CLIPVisionModel", "CLIPVisionModelWithProjection"],
    trunk: Trunk {
        path: "vision_model",
        embedding: "embeddings.patch_embedding",
        positions: Some("embeddings.position_embedding"),
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
        blocks: "encoder.layers",
        norms: &[(Embedding, "pre_layrnorm")],
        linears: &[],
        heads: &[],
    },
    attention: CLIP_ATTENTION,
    recurrent: None,
    mlp: CLIP_MLP,
    moe: None,
    norms: CLIP_NORMS,
    norm_kind: NormKind::LayerNorm,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::Stacked,
    parameters: &[],
    extra: None,
    cross_attention: None,
    encoder: Some(Encoder {
        images: Some(ImageTokens {
            learned: &[LearnedToken { path: "embeddings.class_embedding", has_positions: true }],
            must_be_square: true,
            unread: &[],
        }),
        readouts: READOUTS,
        ..Encoder::PLAIN
    }),
    math: Math {
        activation: ActivationRule::Config(Activation::QuickGelu),
        positions: Positions::Learned { offset: 0 },
        ..Math::LLAMA
    },
    keep: &[],
    config_like: None,
    in_memory: &[],
};
