//! Cohere Command R and Aya.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{LogitScale, Math, Pairing, Positions, Residual};
use super::role::NormKind;
use super::role::NormSite::{self, AttentionInput};

/// The description.
pub const FAMILY: Family = Family {
    name: "cohere",
    summary: "Command R, Aya: parallel residual after one LayerNorm, scaled logits",
    model_types: &["cohere"],
    architectures: &["CohereForCausalLM", "CohereModel"],
    norms: &[
        (AttentionInput, "input_layernorm"),
        (NormSite::Query, "self_attn.q_norm"),
        (NormSite::Key, "self_attn.k_norm"),
    ],
    norm_kind: NormKind::LayerNorm,
    math: Math {
        residual: Residual::Parallel,
        query_key_norm_if: Some("use_qk_norm"),
        positions: Positions::rotary(Pairing::Neighbours, 1.0),
        logit_scale: LogitScale::Multiplier("logit_scale"),
        ..Math::LLAMA
    },
    ..llama::FAMILY
};
