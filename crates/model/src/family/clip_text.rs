//! The tower for text of CLIP.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{CLIP_ATTENTION, CLIP_MLP, CLIP_NORMS};
use super::description::{Family, Trunk};
use super::encoder::{Encoder, Readout, ReadoutRows, ReadoutStep};
use super::math::{Activation, ActivationRule, Math, Positions};
use super::role::NormSite::Final;
use super::role::{NormKind, Orientation, RowOrder};

/// What is read out of the last hidden states.
const READOUTS: &[Readout] = &[
    Readout { name: "pooled", class: Some("CLIPTextModel"), rows: ReadoutRows::EndOfText, steps: &[] },
    Readout {
        name: "text embedding",
        class: None,
        rows: ReadoutRows::EndOfText,
        steps: &[ReadoutStep::Linear("text_projection")],
    },
];

/// The description.
pub const FAMILY: Family = Family {
    name: "clip_text",
    summary: "CLIP, text: tokens see earlier ones, and the embedding is read at the end of the text",
    model_types: &["clip_text_model"],
    architectures: &["CLIPTextModel", "CLIPTextModelWithProjection"],
    trunk: Trunk {
        path: "text_model",
        embedding: "embeddings.token_embedding",
        positions: Some("embeddings.position_embedding"),
        other_embedding: None,
        layer_inputs: None,
        parameters: &[],
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
    encoder: Some(Encoder { is_causal: true, readouts: READOUTS, ..Encoder::PLAIN }),
    math: Math {
        activation: ActivationRule::Config(Activation::QuickGelu),
        positions: Positions::Learned { offset: 0 },
        ..Math::LLAMA
    },
    keep: &[],
    config_like: None,
    in_memory: &[],
};
