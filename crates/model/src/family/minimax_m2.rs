//! MiniMax-M2.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{BLOCK_SPARSE_EXPERTS, EXPERTS, FUSED_EXPERTS, PRE_AND_QK_NORMS};
use super::description::{Family, Moe};
use super::llama;
use super::math::{Math, Pairing, Positions, QueryKeyNorm, Routing};
use super::role::Role::Router;

/// The description.
pub const FAMILY: Family = Family {
    name: "minimax_m2",
    summary: "MiniMax-M2: many experts with sigmoid routing, norms over all queries and keys",
    model_types: &["minimax_m2"],
    architectures: &["MiniMaxM2ForCausalLM", "MiniMaxM2Model"],
    mlp: &[],
    moe: Some(Moe {
        routing: &[(Router, "block_sparse_moe.gate"), (Router, "mlp.gate")],
        experts: &[BLOCK_SPARSE_EXPERTS, EXPERTS, FUSED_EXPERTS],
        shared: &[],
        rule: Routing::SigmoidTop,
    }),
    norms: PRE_AND_QK_NORMS,
    parameters: &["block_sparse_moe.e_score_correction_bias", "mlp.e_score_correction_bias"],
    math: Math {
        positions: Positions::rotary(Pairing::Halves, 1.0),
        query_key_norm: QueryKeyNorm::AllHeads,
        ..Math::LLAMA
    },
    keep: &["lm_head", "*block_sparse_moe.gate*", "*self_attn*"],
    ..llama::FAMILY
};
