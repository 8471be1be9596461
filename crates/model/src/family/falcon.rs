//! Falcon 7B, 40B and 180B, and the ALiBi models of RefinedWeb.
//!
//! Data only; the fields are explained in [`super::description`].

use super::bloom;
use super::description::{Family, Trunk};
use super::math::{Activation, ActivationRule, Alibi, Math, Positions, Residual};
use super::role::NormSite::{AttentionInput, FeedForwardInput, Final};
use super::role::RowOrder;

/// The description.
pub const FAMILY: Family = Family {
    name: "falcon",
    summary: "Falcon: rotary embeddings or ALiBi, parallel or sequential residual, q, k and v in one matrix, per key head",
    model_types: &["falcon"],
    architectures: &["FalconForCausalLM", "FalconModel"],
    trunk: Trunk { norms: &[(Final, "ln_f")], ..bloom::FAMILY.trunk },
    norms: &[
        (AttentionInput, "input_layernorm"),
        // Models with a norm for each of two parallel branches.
        (AttentionInput, "ln_attn"),
        (FeedForwardInput, "ln_mlp"),
        // Models whose branches are not parallel.
        (FeedForwardInput, "post_attention_layernorm"),
    ],
    qkv_rows: RowOrder::PerGroup,
    math: Math {
        activation: ActivationRule::Config(Activation::Gelu),
        residual: Residual::ParallelIfAny(&[("new_decoder_architecture", false), ("parallel_attn", true)]),
        positions: Positions::AlibiIf("alibi", Alibi { rounded: true, scaled: true }),
        ..Math::LLAMA
    },
    ..bloom::FAMILY
};
