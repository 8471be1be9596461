//! XGLM.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::MODEL_TRUNK;
use super::description::{Family, Trunk};
use super::math::{Activation, ActivationRule, EmbeddingScale, Math, Positions};
use super::opt;
use super::role::NormSite::Final;

/// The description.
pub const FAMILY: Family = Family {
    name: "xglm",
    summary: "XGLM: OPT with positions of sines and cosines, and scaled embeddings",
    model_types: &["xglm"],
    architectures: &["XGLMForCausalLM", "XGLMModel"],
    trunk: Trunk { norms: &[(Final, "layer_norm")], ..MODEL_TRUNK },
    math: Math {
        activation: ActivationRule::Config(Activation::Gelu),
        positions: Positions::Sinusoidal { offset: 2, padding: 1 },
        embedding_scale: EmbeddingScale::RootHiddenIf("scale_embedding"),
        ..Math::LLAMA
    },
    ..opt::FAMILY
};
