//! ViT.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{BERT_MLP, VIT_ATTENTION, VIT_NORMS};
use super::description::{Family, Trunk};
use super::encoder::{Encoder, ImageTokens, LearnedToken, Readout, ReadoutRows, ReadoutStep};
use super::math::{Activation, ActivationRule, Math, Positions};
use super::role::NormSite::Final;
use super::role::{NormKind, Orientation, RowOrder};

/// What is read out of the last hidden states.
pub(super) const READOUTS: &[Readout] = &[
    Readout {
        name: "pooled",
        class: None,
        rows: ReadoutRows::First,
        steps: &[ReadoutStep::Linear("pooler.dense"), ReadoutStep::TanhUnlessNamed("pooler_act")],
    },
    Readout { name: "logits", class: None, rows: ReadoutRows::First, steps: &[ReadoutStep::Linear("classifier")] },
];

/// The description.
pub const FAMILY: Family = Family {
    name: "vit",
    summary: "ViT: an encoder of images as patches, with the token of a class and learned positions",
    model_types: &["vit"],
    architectures: &["ViTModel", "ViTForImageClassification"],
    trunk: Trunk {
        path: "vit",
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
    mlp: BERT_MLP,
    moe: None,
    norms: VIT_NORMS,
    norm_kind: NormKind::LayerNorm,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::Stacked,
    parameters: &[],
    extra: None,
    cross_attention: None,
    encoder: Some(Encoder {
        images: Some(ImageTokens {
            learned: &[LearnedToken { path: "embeddings.cls_token", has_positions: true }],
            must_be_square: false,
            unread: &["embeddings.mask_token"],
        }),
        readouts: READOUTS,
        ..Encoder::PLAIN
    }),
    math: Math {
        activation: ActivationRule::Config(Activation::Gelu),
        positions: Positions::Learned { offset: 0 },
        ..Math::LLAMA
    },
    keep: &[],
    config_like: None,
    in_memory: &[],
};
