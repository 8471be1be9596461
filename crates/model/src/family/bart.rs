//! BART.
//!
//! Data only; the fields are explained in [`super::description`].

use super::decoder_stack::DecoderStack;
use super::description::{Family, Linears, Trunk};
use super::encoder::Encoder;
use super::math::{Activation, ActivationRule, EmbeddingScale, Math, Positions, Residual};
use super::role::NormSite::{AttentionInput, CrossAttentionInput, Embedding, FeedForwardInput, SourceEmbedding};
use super::role::Role::{Down, Key, Output, Query, Up, Value};
use super::role::{NormKind, Orientation, RowOrder};

/// The layers of self-attention in both stacks.
const ATTENTION: Linears = &[
    (Query, "self_attn.q_proj"),
    (Key, "self_attn.k_proj"),
    (Value, "self_attn.v_proj"),
    (Output, "self_attn.out_proj"),
];

/// The layers of networks in both stacks.
const MLP: Linears = &[(Up, "fc1"), (Down, "fc2")];

/// The decoder of models like BART, which has norms of its own around the blocks.
pub(super) const DECODER: DecoderStack = DecoderStack {
    blocks: "decoder.layers",
    positions: Some("decoder.embed_positions"),
    trunk_norms: &[(Embedding, "decoder.layernorm_embedding")],
    attention: ATTENTION,
    cross_attention: &[
        (Query, "encoder_attn.q_proj"),
        (Key, "encoder_attn.k_proj"),
        (Value, "encoder_attn.v_proj"),
        (Output, "encoder_attn.out_proj"),
    ],
    mlp: MLP,
    norms: &[
        (AttentionInput, "self_attn_layer_norm"),
        (CrossAttentionInput, "encoder_attn_layer_norm"),
        (FeedForwardInput, "final_layer_norm"),
    ],
};

/// The description.
pub const FAMILY: Family = Family {
    name: "bart",
    summary: "BART: an encoder-decoder with learned positions and norms behind its branches",
    model_types: &["bart"],
    architectures: &["BartForConditionalGeneration"],
    trunk: Trunk {
        path: "model",
        embedding: "shared",
        positions: Some("encoder.embed_positions"),
        layer_inputs: None,
        blocks: "encoder.layers",
        norms: &[(SourceEmbedding, "encoder.layernorm_embedding")],
        linears: &[],
        other_embedding: None,
        parameters: &[],
        heads: &["lm_head", "final_logits"],
    },
    attention: ATTENTION,
    recurrent: None,
    mlp: MLP,
    moe: None,
    norms: &[(AttentionInput, "self_attn_layer_norm"), (FeedForwardInput, "final_layer_norm")],
    norm_kind: NormKind::LayerNorm,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::Stacked,
    parameters: &[],
    extra: None,
    cross_attention: None,
    encoder: Some(Encoder {
        embedding_copies: &["encoder.embed_tokens", "decoder.embed_tokens"],
        decoder: Some(DECODER),
        ..Encoder::PLAIN
    }),
    math: Math {
        activation: ActivationRule::Config(Activation::Gelu),
        residual: Residual::PostNorm,
        positions: Positions::Learned { offset: 2 },
        embedding_scale: EmbeddingScale::RootHiddenIf("scale_embedding"),
        ..Math::LLAMA
    },
    keep: &[],
    config_like: None,
    in_memory: &[],
};
