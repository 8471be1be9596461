//! Seed-OSS.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;

/// The description.
pub const FAMILY: Family = Family {
    name: "seed_oss",
    summary: "Seed-OSS: Llama with biases on q, k and v",
    model_types: &["seed_oss"],
    architectures: &["SeedOssForCausalLM", "SeedOssModel"],
    ..llama::FAMILY
};
