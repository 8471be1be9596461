//! GLM-4-0414.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::glm;
use super::role::NormSite::{AttentionInput, AttentionOutput, FeedForwardInput, FeedForwardOutput};

/// The description.
pub const FAMILY: Family = Family {
    name: "glm4",
    summary: "GLM-4-0414: GLM with norms before and after each branch",
    model_types: &["glm4"],
    architectures: &["Glm4ForCausalLM", "Glm4Model"],
    norms: &[
        (AttentionInput, "input_layernorm"),
        (AttentionOutput, "post_self_attn_layernorm"),
        (FeedForwardInput, "post_attention_layernorm"),
        (FeedForwardOutput, "post_mlp_layernorm"),
    ],
    ..glm::FAMILY
};
