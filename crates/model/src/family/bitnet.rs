//! BitNet b1.58, the checkpoints with float weights.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{Activation, ActivationRule, Math};
use super::role::NormSite::{self, AttentionInput, FeedForwardInput};

/// The description.
pub const FAMILY: Family = Family {
    name: "bitnet",
    summary: "BitNet with float weights: Llama with norms before the output and down projections, squared ReLU",
    model_types: &["bitnet"],
    architectures: &["BitNetForCausalLM", "BitNetModel"],
    norms: &[
        (AttentionInput, "input_layernorm"),
        (NormSite::Heads, "self_attn.attn_sub_norm"),
        (FeedForwardInput, "post_attention_layernorm"),
        (NormSite::Hidden, "mlp.ffn_sub_norm"),
    ],
    math: Math { activation: ActivationRule::Config(Activation::ReluSquared), ..Math::LLAMA },
    ..llama::FAMILY
};
