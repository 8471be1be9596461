//! Falcon-H1.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::math::{EmbeddingScale, LogitScale, Math};
use super::recurrent::{Mamba2Norm, Recurrent, RecurrentBlocks, RecurrentMixer};
use super::{bamba, llama};

/// The description.
pub const FAMILY: Family = Family {
    name: "falcon_h1",
    summary: "Falcon-H1: attention and Mamba 2 side by side in every block, multipliers everywhere",
    model_types: &["falcon_h1"],
    architectures: &["FalconH1ForCausalLM", "FalconH1Model"],
    trunk: bamba::FAMILY.trunk,
    recurrent: Some(Recurrent {
        mixer: RecurrentMixer::Mamba2 { norm: Mamba2Norm::PerGroupIfAny },
        blocks: RecurrentBlocks::BesideAttention,
        ..bamba::MAMBA2
    }),
    mlp: bamba::MLP,
    norms: bamba::NORMS,
    math: Math {
        embedding_scale: EmbeddingScale::Multiplier("embedding_multiplier"),
        logit_scale: LogitScale::Multiplier("lm_head_multiplier"),
        branch_multipliers: true,
        ..Math::LLAMA
    },
    ..llama::FAMILY
};
