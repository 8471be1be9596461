//! Mistral Small 4, alone and inside the multimodal checkpoints.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{EXPERTS, FUSED_EXPERTS};
use super::deepseek_v3;
use super::description::{Family, Moe};
use super::math::{Math, QueryScale, Routing};

/// The description.
pub const FAMILY: Family = Family {
    name: "mistral4",
    summary: "Mistral 4: attention of DeepSeek V3 whose queries grow with their position, softmax routing",
    model_types: &["mistral4"],
    architectures: &["Mistral4ForCausalLM", "Mistral4Model"],
    moe: match deepseek_v3::FAMILY.moe {
        Some(moe) => Some(Moe { experts: &[FUSED_EXPERTS, EXPERTS], rule: Routing::SoftmaxTwoBest, ..moe }),
        None => None,
    },
    parameters: &[],
    math: Math { query_scale: QueryScale::RotaryParameters, ..deepseek_v3::FAMILY.math },
    keep: &["lm_head", "*mlp.gate"],
    ..deepseek_v3::FAMILY
};
