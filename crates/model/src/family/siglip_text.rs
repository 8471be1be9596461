//! The tower for text of SigLIP.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{CLIP_ATTENTION, CLIP_MLP, CLIP_NORMS};
use super::description::{Family, Trunk};
use super::encoder::{Encoder, Readout, ReadoutRows, ReadoutStep};
use super::math::{Activation, ActivationRule, Math, Positions};
use super::role::NormSite::Final;
use super::role::{NormKind, Orientation, RowOrder};

/// What is read out of the last hidden states.
const READOUTS: &[Readout] =
    &[Readout { name: "pooled", class: None, rows: ReadoutRows::Last, steps: &[ReadoutStep::Linear("head")] }];

/// The description.
pub const FAMILY: Family = Family {
    name: "siglip_text",
    summary: "SigLIP, text: an encoder whose embedding is read at the last token",
    model_types: &["siglip_text_model"],
    architectures: &["SiglipTextModel"],
    trunk: Trunk {
        path: "text_model",
        embedding: "embeddings.token_embedding",
        positions: Some("embeddings.position_embedding"),
        layer_inputs: None,
        blocks: "encoder.layers",
        norms: &[(Final, "final_layer_norm")],
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
        images: None,
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
