//! K-EXAONE.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::PRE_AND_QK_NORMS;
use super::deepseek_v3;
use super::description::Family;
use super::exaone4;

/// The description.
pub const FAMILY: Family = Family {
    name: "exaone_moe",
    summary: "K-EXAONE: attention of EXAONE 4, experts as in DeepSeek V3",
    model_types: &["exaone_moe"],
    architectures: &["ExaoneMoeForCausalLM", "ExaoneMoeModel"],
    moe: deepseek_v3::FAMILY.moe,
    norms: PRE_AND_QK_NORMS,
    parameters: &["mlp.e_score_correction_bias", "mlp.gate.e_score_correction_bias"],
    keep: &["lm_head", "*mlp.gate"],
    ..exaone4::FAMILY
};
