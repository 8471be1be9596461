//! Gemma 2.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::gemma;
use super::math::{Activation, ActivationRule, AttentionScale, Math, Window};
use super::role::NormSite::{AttentionInput, AttentionOutput, FeedForwardInput, FeedForwardOutput};

/// The description.
pub const FAMILY: Family = Family {
    name: "gemma2",
    summary: "Gemma 2: norms before and after each branch, soft-caps, sliding window in every second layer",
    model_types: &["gemma2"],
    architectures: &["Gemma2ForCausalLM", "Gemma2Model"],
    norms: &[
        (AttentionInput, "input_layernorm"),
        (AttentionOutput, "post_attention_layernorm"),
        (FeedForwardInput, "pre_feedforward_layernorm"),
        (FeedForwardOutput, "post_feedforward_layernorm"),
    ],
    math: Math {
        activation: ActivationRule::Config(Activation::GeluTanh),
        window: Window::Alternating { period: 2 },
        attention_scale: AttentionScale::InverseRootOf("query_pre_attn_scalar"),
        ..gemma::FAMILY.math
    },
    ..gemma::FAMILY
};
