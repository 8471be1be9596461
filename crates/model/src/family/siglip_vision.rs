//! The tower for images of SigLIP.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{CLIP_ATTENTION, CLIP_MLP, CLIP_NORMS};
use super::description::{Family, Trunk};
use super::encoder::{Encoder, ImageTokens, Readout, ReadoutRows, ReadoutStep};
use super::math::{Activation, ActivationRule, Math, Positions};
use super::role::NormSite::Final;
use super::role::{NormKind, Orientation, RowOrder};

/// What is read out of the last hidden states.
const READOUTS: &[Readout] = &[Readout {
    name: "pooled",
    class: None,
    rows: ReadoutRows::Attended("head"),
    steps: &[ReadoutStep::Added(&[
        ReadoutStep::Norm("head.layernorm"),
        ReadoutStep::Linear("head.mlp.fc1"),
        ReadoutStep::Activation,
        ReadoutStep::Linear("head.mlp.fc2"),
    ])],
}];

/// The description.
pub const FAMILY: Family = Family {
    name: "siglip_vision",
    summary: "SigLIP, images: ViT without the token of a class, pooled by attention",
    model_types: &["siglip_vision_model"],
    architectures: &["SiglipVisionModel"],
    trunk: Trunk {
        path: "vision_model",
        embedding: "embeddings.patch_embedding",
        positions: Some("embeddings.position_embedding"),
        layer_inputs: None,
        blocks: "encoder.layers",
        norms: &[(Final, "post_layernorm")],
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
        token_types: None,
        relative_positions: None,
        distance_embeddings: None,
        drops_tokens: false,
        images: Some(ImageTokens { learned: &[], must_be_square: true, unread: &[] }),
        is_causal: false,
        readouts: READOUTS,
        unread: &[],
    }),
    math: Math {
        activation: ActivationRule::Config(Activation::GeluTanh),
        positions: Positions::Learned { offset: 0 },
        ..Math::LLAMA
    },
    keep: &[],
    config_like: None,
    in_memory: &[],
};
