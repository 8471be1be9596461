//! DBRX.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::FUSED_EXPERTS;
use super::description::{ExpertLayout, ExpertStorage, Family, Moe, Trunk};
use super::llama;
use super::math::{Math, Routing};
use super::role::NormSite::{AttentionInput, FeedForwardInput, Final};
use super::role::Role::{Down, Gate, Output, QueryKeyValue, Router, Up};
use super::role::{NormKind, Orientation};

/// The description.
pub const FAMILY: Family = Family {
    name: "dbrx",
    summary: "DBRX: LayerNorm without bias, clipped q, k and v in one matrix, experts one below the other in three",
    model_types: &["dbrx"],
    architectures: &["DbrxForCausalLM", "DbrxModel"],
    trunk: Trunk {
        path: "transformer",
        embedding: "wte",
        blocks: "blocks",
        norms: &[(Final, "norm_f")],
        ..llama::FAMILY.trunk
    },
    attention: &[(QueryKeyValue, "norm_attn_norm.attn.Wqkv"), (Output, "norm_attn_norm.attn.out_proj")],
    mlp: &[],
    moe: Some(Moe {
        routing: &[(Router, "ffn.router.layer")],
        experts: &[
            ExpertLayout {
                storage: ExpertStorage::Stacked,
                linears: &[(Gate, "ffn.experts.mlp.w1"), (Up, "ffn.experts.mlp.v1")],
                ..FUSED_EXPERTS
            },
            ExpertLayout {
                storage: ExpertStorage::Stacked,
                orientation: Orientation::InOut,
                linears: &[(Down, "ffn.experts.mlp.w2")],
                ..FUSED_EXPERTS
            },
        ],
        shared: &[],
        rule: Routing::SoftmaxThenTopByNorm,
    }),
    norms: &[(AttentionInput, "norm_attn_norm.norm_1"), (FeedForwardInput, "norm_attn_norm.norm_2")],
    norm_kind: NormKind::LayerNorm,
    math: Math { clips: true, ..Math::LLAMA },
    keep: &["lm_head", "*router.layer"],
    ..llama::FAMILY
};
