//! StableLM 2 and 3B.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{Math, Pairing, Positions, Residual};
use super::role::NormKind;
use super::role::NormSite::{self, AttentionInput, FeedForwardInput};

/// The description.
pub const FAMILY: Family = Family {
    name: "stablelm",
    summary: "StableLM: LayerNorm, rotary embeddings on a quarter of each head, sequential or parallel residual",
    model_types: &["stablelm"],
    architectures: &["StableLmForCausalLM", "StableLmModel"],
    norms: &[
        (AttentionInput, "input_layernorm"),
        (NormSite::Query, "self_attn.q_layernorm.norms.{}"),
        (NormSite::Key, "self_attn.k_layernorm.norms.{}"),
        (FeedForwardInput, "post_attention_layernorm"),
    ],
    norm_kind: NormKind::LayerNorm,
    math: Math {
        residual: Residual::ParallelIf("use_parallel_residual", false),
        query_key_norm_if: Some("qk_layernorm"),
        positions: Positions::rotary(Pairing::Halves, 0.25),
        ..Math::LLAMA
    },
    ..llama::FAMILY
};
