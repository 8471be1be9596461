//! LLaMA 1 to 3, and the many checkpoints of the same architecture.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::{GATED_MLP, MODEL_TRUNK, PRE_NORMS, SELF_ATTENTION};
use super::description::Family;
use super::math::Math;
use super::role::{NormKind, Orientation, RowOrder};

/// The description.
pub const FAMILY: Family = Family {
    name: "llama",
    summary: "Llama 1 to 3.x: grouped-query attention, gated MLP, RMSNorm",
    model_types: &["llama"],
    architectures: &["LlamaForCausalLM", "LlamaModel", "LLaMAForCausalLM"],
    trunk: MODEL_TRUNK,
    attention: SELF_ATTENTION,
    recurrent: None,
    mlp: GATED_MLP,
    moe: None,
    norms: PRE_NORMS,
    norm_kind: NormKind::Rms,
    orientation: Orientation::OutIn,
    qkv_rows: RowOrder::Stacked,
    parameters: &[],
    extra: None,
    cross_attention: None,
    encoder: None,
    math: Math::LLAMA,
    keep: &["lm_head"],
    config_like: None,
    in_memory: &[],
};
