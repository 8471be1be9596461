//! DeepSeek V4.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, MODEL_TRUNK};
use super::description::{ExpertLayout, Family, Linears, Moe, Norms, Trunk};
use super::llama;
use super::math::{Activation, ActivationRule, Math, Pairing, Positions, Routing};
use super::role::NormSite;
use super::role::NormSite::{AttentionInput, CompressedKey, FeedForwardInput, KeyValueLatent, QueryLatent};
use super::role::Role::{
    CompressedGate, CompressedKey as CompressedKeys, Down, Gate, IndexGate, IndexKey, IndexQuery, IndexWeights,
    KeyValue, Output, OutputDown, QueryDown, QueryUp, Router, Up,
};

const ATTENTION: Linears = &[
    (QueryDown, "attn.wq_a"),
    (QueryUp, "attn.wq_b"),
    (KeyValue, "attn.wkv"),
    (CompressedKeys, "attn.compressor.wkv"),
    (CompressedGate, "attn.compressor.wgate"),
    (IndexQuery, "attn.indexer.wq_b"),
    (IndexKey, "attn.indexer.compressor.wkv"),
    (IndexGate, "attn.indexer.compressor.wgate"),
    (IndexWeights, "attn.indexer.weights_proj"),
    (OutputDown, "attn.wo_a"),
    (Output, "attn.wo_b"),
];

/// The norm of keys has another name where transformers has saved it.
const NORMS: Norms = &[
    (AttentionInput, "attn_norm"),
    (QueryLatent, "attn.q_norm"),
    (KeyValueLatent, "attn.kv_norm"),
    (KeyValueLatent, "attn.norm"),
    (CompressedKey, "attn.compressor.norm"),
    (NormSite::IndexKey, "attn.indexer.compressor.norm"),
    (FeedForwardInput, "ffn_norm"),
];

/// The description.
pub const FAMILY: Family = Family {
    name: "deepseek_v4",
    summary: "DeepSeek V4: several residual streams, keys of a window and compressed ones, experts that tokens choose in first blocks",
    model_types: &["deepseek_v4"],
    architectures: &["DeepseekV4ForCausalLM", "DeepseekV4Model"],
    trunk: Trunk {
        other_embedding: Some("embed"),
        parameters: &[
            "hc_head.hc_fn",
            "hc_head.hc_base",
            "hc_head.hc_scale",
            "hc_head_fn",
            "hc_head_base",
            "hc_head_scale",
        ],
        heads: &["head", "lm_head"],
        ..MODEL_TRUNK
    },
    attention: ATTENTION,
    mlp: &[],
    moe: Some(Moe {
        routing: &[(Router, "ffn.gate")],
        experts: &[ExpertLayout {
            linears: &[(Gate, "ffn.experts.{}.w1"), (Up, "ffn.experts.{}.w3"), (Down, "ffn.experts.{}.w2")],
            ..EXPERTS
        }],
        shared: &[(Gate, "ffn.shared_experts.w1"), (Up, "ffn.shared_experts.w3"), (Down, "ffn.shared_experts.w2")],
        rule: Routing::RootSoftplusTop,
    }),
    norms: NORMS,
    parameters: &[
        "attn.attn_sink",
        "attn.compressor.ape",
        "attn.indexer.compressor.ape",
        "ffn.gate.bias",
        "ffn.gate.tid2eid",
        "hc_attn_fn",
        "hc_attn_base",
        "hc_attn_scale",
        "hc_ffn_fn",
        "hc_ffn_base",
        "hc_ffn_scale",
    ],
    math: Math {
        activation: ActivationRule::Fixed(Activation::LimitedSilu),
        positions: Positions::rotary(Pairing::Neighbours, 0.125),
        compressed_keys: true,
        hyper_connections: true,
        ..Math::LLAMA
    },
    keep: &["*lm_head", "head", "*attn*", "*ffn.gate", "mtp.*"],
    ..llama::FAMILY
};
