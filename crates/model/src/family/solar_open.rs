//! Solar Open.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::PRE_NORMS;
use super::description::Family;
use super::glm4_moe;
use super::math::Math;

/// The description.
pub const FAMILY: Family = Family {
    name: "solar_open",
    summary: "Solar Open: attention of Llama, experts as in DeepSeek V3 in every block",
    model_types: &["solar_open"],
    architectures: &["SolarOpenForCausalLM", "SolarOpenModel"],
    norms: PRE_NORMS,
    math: Math::LLAMA,
    keep: &["lm_head", "*mlp.gate"],
    ..glm4_moe::FAMILY
};
