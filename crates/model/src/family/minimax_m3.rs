//! MiniMax M3, inside the multimodal checkpoints.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{BLOCK_SPARSE_EXPERTS, EXPERTS, FUSED_EXPERTS, GATED_MLP, SHARED_EXPERTS};
use super::description::{Family, Linears, Moe, Norms};
use super::llama;
use super::math::{Activation, ActivationRule, Indexer, Math, Pairing, Routing};
use super::role::NormKind;
use super::role::NormSite::{self, AttentionInput, FeedForwardInput, IndexKey, IndexQuery};
use super::role::Role::{self, Down, Gate, GateUp, Key, Output, Query, Router, Up, Value};

/// The experts that all tokens pass, as they are published, and as transformers has them in memory.
const SHARED: Linears = &[
    SHARED_EXPERTS[0],
    SHARED_EXPERTS[1],
    SHARED_EXPERTS[2],
    (GateUp, "mlp.shared_experts.gate_up_proj"),
    (Gate, "block_sparse_moe.shared_experts.gate_proj"),
    (Up, "block_sparse_moe.shared_experts.up_proj"),
    (Down, "block_sparse_moe.shared_experts.down_proj"),
];

/// The norms of a block; those of the indexer are named otherwise where they are published.
const NORMS: Norms = &[
    (AttentionInput, "input_layernorm"),
    (NormSite::Query, "self_attn.q_norm"),
    (NormSite::Key, "self_attn.k_norm"),
    (IndexQuery, "self_attn.indexer.q_norm"),
    (IndexKey, "self_attn.indexer.k_norm"),
    (IndexQuery, "self_attn.index_q_norm"),
    (IndexKey, "self_attn.index_k_norm"),
    (FeedForwardInput, "post_attention_layernorm"),
];

/// The description.
pub const FAMILY: Family = Family {
    name: "minimax_m3",
    summary: "MiniMax M3: tokens attend to blocks of keys that an indexer chooses, clamped SwiGLU, experts with sigmoid routing",
    model_types: &["minimax_m3_vl"],
    architectures: &["MiniMaxM3SparseForConditionalGeneration"],
    attention: &[
        (Query, "self_attn.q_proj"),
        (Key, "self_attn.k_proj"),
        (Value, "self_attn.v_proj"),
        (Role::IndexQuery, "self_attn.indexer.q_proj"),
        (Role::IndexKey, "self_attn.indexer.k_proj"),
        (Role::IndexQuery, "self_attn.index_q_proj"),
        (Role::IndexKey, "self_attn.index_k_proj"),
        (Output, "self_attn.o_proj"),
    ],
    // Some versions of transformers save the dense network under the name of the mixture.
    mlp: &[
        GATED_MLP[0],
        GATED_MLP[1],
        GATED_MLP[2],
        (GateUp, "mlp.gate_up_proj"),
        (Gate, "block_sparse_moe.gate_proj"),
        (Up, "block_sparse_moe.up_proj"),
        (Down, "block_sparse_moe.down_proj"),
    ],
    moe: Some(Moe {
        routing: &[(Router, "block_sparse_moe.gate"), (Router, "mlp.gate")],
        experts: &[BLOCK_SPARSE_EXPERTS, EXPERTS, FUSED_EXPERTS],
        shared: SHARED,
        rule: Routing::SigmoidGroups,
    }),
    norms: NORMS,
    norm_kind: NormKind::RmsUnitOffset,
    parameters: &["block_sparse_moe.e_score_correction_bias", "mlp.gate.e_score_correction_bias"],
    math: Math {
        activation: ActivationRule::Fixed(Activation::ClampedSwiglu),
        indexer: Some(Indexer::Blocks(Pairing::Halves)),
        ..Math::LLAMA
    },
    keep: &[
        "*lm_head",
        "*vision_tower*",
        "*multi_modal_projector*",
        "*patch_merge_mlp*",
        "*block_sparse_moe.gate",
        "*mlp.gate",
        "*self_attn*",
    ],
    ..llama::FAMILY
};
