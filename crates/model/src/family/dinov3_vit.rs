//! DINOv3 with vision transformers.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::DINO_NORMS;
use super::description::{Family, Trunk};
use super::encoder::{Encoder, ImageTokens, LearnedToken, Readout};
use super::math::{Activation, ActivationRule, Math, Positions};
use super::role::NormSite::Final;
use super::role::Role::{Down, Gate, Key, Output, Query, Up, Value};
use super::role::{NormKind, Orientation, RowOrder};

/// What is read out of the last hidden states.
const READOUTS: &[Readout] = &[];

/// The description.
pub const FAMILY: Family = Family {
    name: "dinov3_vit",
    summary: "DINOv3: ViT with registers, scaled branches and rotary positions of patches",
    model_types: &["dinov3_vit"],
    architectures: &["DINOv3ViTModel"],
    trunk: Trunk {
        path: "",
        embedding: "embeddings.patch_embeddings",
        positions: None,
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
        blocks: "layer",
        norms: &[(Final, "norm")],
        linears: &[],
        heads: &[],
    },
    attention: &[
        (Query, "attention.q_proj"),
        (Key, "attention.k_proj"),
        (Value, "attention.v_proj"),
        (Output, "attention.o_proj"),
    ],
    recurrent: None,
    mlp: &[(Gate, "mlp.gate_proj"), (Up, "mlp.up_proj"), (Down, "mlp.down_proj")],
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
            learned: &[
                LearnedToken { path: "embeddings.cls_token", has_positions: false },
                LearnedToken { path: "embeddings.register_tokens", has_positions: false },
            ],
            must_be_square: false,
            unread: &["embeddings.mask_token"],
        }),
        readouts: READOUTS,
        ..Encoder::PLAIN
    }),
    math: Math {
        activation: ActivationRule::Config(Activation::Gelu),
        positions: Positions::RotaryOfPatches,
        gated_if: Some("use_gated_mlp"),
        layer_scales: Some(("layer_scale1.lambda1", "layer_scale2.lambda1")),
        ..Math::LLAMA
    },
    keep: &[],
    config_like: None,
    in_memory: &[],
};
