//! Descriptions that several families share word for word.

use super::description::{ExpertLayout, ExpertStorage, Linears, Norms, Trunk};
use super::role::NormSite::{self, AttentionInput, FeedForwardInput, Final};
use super::role::Role::{Down, Gate, GateUp, Key, Output, Query, Up, Value};
use super::role::{Orientation, RowOrder};

/// `model.embed_tokens`, `model.layers`, `model.norm`, `lm_head`.
pub const MODEL_TRUNK: Trunk = Trunk {
    path: "model",
    embedding: "embed_tokens",
    positions: None,
    other_embedding: None,
    layer_inputs: None,
    parameters: &[],
    blocks: "layers",
    norms: &[(Final, "norm")],
    linears: &[],
    heads: &["lm_head"],
};

/// Separate projections, as in LLaMA.
pub const SELF_ATTENTION: Linears = &[
    (Query, "self_attn.q_proj"),
    (Key, "self_attn.k_proj"),
    (Value, "self_attn.v_proj"),
    (Output, "self_attn.o_proj"),
];

/// A gated feed-forward network, as in LLaMA.
pub const GATED_MLP: Linears = &[(Gate, "mlp.gate_proj"), (Up, "mlp.up_proj"), (Down, "mlp.down_proj")];

/// The gated feed-forward network of experts that all tokens pass, as in DeepSeek.
pub const SHARED_EXPERTS: Linears = &[
    (Gate, "mlp.shared_experts.gate_proj"),
    (Up, "mlp.shared_experts.up_proj"),
    (Down, "mlp.shared_experts.down_proj"),
];

/// A gated feed-forward network whose gate and up projection are one matrix, gate first.
pub const FUSED_GATED_MLP: Linears = &[(GateUp, "mlp.gate_up_proj"), (Down, "mlp.down_proj")];

/// Separate projections, as in BERT.
pub const BERT_ATTENTION: Linears = &[
    (Query, "attention.self.query"),
    (Key, "attention.self.key"),
    (Value, "attention.self.value"),
    (Output, "attention.output.dense"),
];

/// A plain feed-forward network, as in BERT.
pub const BERT_MLP: Linears = &[(Up, "intermediate.dense"), (Down, "output.dense")];

/// Separate projections, as in ViT.
pub const VIT_ATTENTION: Linears = &[
    (Query, "attention.attention.query"),
    (Key, "attention.attention.key"),
    (Value, "attention.attention.value"),
    (Output, "attention.output.dense"),
];

/// A norm before each branch, as in ViT.
pub const VIT_NORMS: Norms = &[(AttentionInput, "layernorm_before"), (FeedForwardInput, "layernorm_after")];

/// Separate projections, as in CLIP.
pub const CLIP_ATTENTION: Linears = &[
    (Query, "self_attn.q_proj"),
    (Key, "self_attn.k_proj"),
    (Value, "self_attn.v_proj"),
    (Output, "self_attn.out_proj"),
];

/// A plain feed-forward network, as in CLIP.
pub const CLIP_MLP: Linears = &[(Up, "mlp.fc1"), (Down, "mlp.fc2")];

/// A norm before each branch, as in CLIP.
pub const CLIP_NORMS: Norms = &[(AttentionInput, "layer_norm1"), (FeedForwardInput, "layer_norm2")];

/// A norm before each branch, as in DINOv2.
pub const DINO_NORMS: Norms = &[(AttentionInput, "norm1"), (FeedForwardInput, "norm2")];

/// A norm behind each branch, as in BERT.
pub const BERT_NORMS: Norms = &[(AttentionInput, "attention.output.LayerNorm"), (FeedForwardInput, "output.LayerNorm")];

/// A norm before each branch, as in LLaMA.
pub const PRE_NORMS: Norms = &[(AttentionInput, "input_layernorm"), (FeedForwardInput, "post_attention_layernorm")];

/// A norm before each branch, and norms of queries and keys.
pub const PRE_AND_QK_NORMS: Norms = &[
    (AttentionInput, "input_layernorm"),
    (NormSite::Query, "self_attn.q_norm"),
    (NormSite::Key, "self_attn.k_norm"),
    (FeedForwardInput, "post_attention_layernorm"),
];

/// One module per expert under `mlp.experts`.
pub const EXPERTS: ExpertLayout = ExpertLayout {
    storage: ExpertStorage::Separate,
    orientation: Orientation::OutIn,
    gate_up_rows: RowOrder::Stacked,
    linears: &[(Gate, "mlp.experts.{}.gate_proj"), (Up, "mlp.experts.{}.up_proj"), (Down, "mlp.experts.{}.down_proj")],
};

/// One module per expert under `block_sparse_moe.experts`, with Mixtral's names.
pub const BLOCK_SPARSE_EXPERTS: ExpertLayout = ExpertLayout {
    linears: &[
        (Gate, "block_sparse_moe.experts.{}.w1"),
        (Up, "block_sparse_moe.experts.{}.w3"),
        (Down, "block_sparse_moe.experts.{}.w2"),
    ],
    ..EXPERTS
};

/// All experts in two tensors `[experts, out, in]`: the form that transformers 5 holds in memory, and saves unless it restores the
/// original layout.
pub const FUSED_EXPERTS: ExpertLayout = ExpertLayout {
    storage: ExpertStorage::Fused,
    linears: &[(GateUp, "mlp.experts.gate_up_proj"), (Down, "mlp.experts.down_proj")],
    ..EXPERTS
};

/// The same with matrices `[in, out]`, as some are published. Which of the two a checkpoint has follows from its shapes.
pub const TRANSPOSED_EXPERTS: ExpertLayout = ExpertLayout { orientation: Orientation::InOut, ..FUSED_EXPERTS };
