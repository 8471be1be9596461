//! MPT.
//!
//! Data only; the fields are explained in [`super::description`].

use super::bloom;
use super::description::{Family, Trunk};
use super::math::{Activation, ActivationRule, AttentionScale, Math};
use super::role::NormSite::{AttentionInput, FeedForwardInput, Final};
use super::role::Role::{Down, Output, QueryKeyValue, Up};
use super::role::RowOrder;

/// The description.
pub const FAMILY: Family = Family {
    name: "mpt",
    summary: "MPT: ALiBi, LayerNorm without bias, q, k and v in one matrix",
    model_types: &["mpt"],
    architectures: &["MptForCausalLM", "MptModel", "MPTForCausalLM"],
    trunk: Trunk { embedding: "wte", blocks: "blocks", norms: &[(Final, "norm_f")], ..bloom::FAMILY.trunk },
    attention: &[(QueryKeyValue, "attn.Wqkv"), (Output, "attn.out_proj")],
    mlp: &[(Up, "ffn.up_proj"), (Down, "ffn.down_proj")],
    norms: &[(AttentionInput, "norm_1"), (FeedForwardInput, "norm_2")],
    qkv_rows: RowOrder::Stacked,
    math: Math {
        activation: ActivationRule::Fixed(Activation::Gelu),
        clips: true,
        attention_scale: AttentionScale::StatedForAttention("softmax_scale"),
        ..bloom::FAMILY.math
    },
    ..bloom::FAMILY
};
