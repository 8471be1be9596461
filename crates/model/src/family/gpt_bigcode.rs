//! GPT-BigCode: SantaCoder and StarCoder 1.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::gpt2;
use super::role::{Orientation, RowOrder};

/// The description.
pub const FAMILY: Family = Family {
    name: "gpt_bigcode",
    summary: "GPT-BigCode (SantaCoder, StarCoder): GPT-2 with one key head, weights stored as [out, in]",
    model_types: &["gpt_bigcode"],
    architectures: &["GPTBigCodeForCausalLM", "GPTBigCodeModel"],
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::PerGroup,
    ..gpt2::FAMILY
};
