//! Gemma 3, text-only and inside the multimodal checkpoints.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::gemma2;
use super::math::{Math, Window};
use super::role::NormSite::{self, AttentionInput, AttentionOutput, FeedForwardInput, FeedForwardOutput};

/// The description.
pub const FAMILY: Family = Family {
    name: "gemma3",
    summary: "Gemma 3: Gemma 2 with query and key norms, sliding window in five of six layers",
    model_types: &["gemma3_text", "gemma3"],
    architectures: &["Gemma3ForCausalLM", "Gemma3TextModel", "Gemma3ForConditionalGeneration"],
    norms: &[
        (AttentionInput, "input_layernorm"),
        (NormSite::Query, "self_attn.q_norm"),
        (NormSite::Key, "self_attn.k_norm"),
        (AttentionOutput, "post_attention_layernorm"),
        (FeedForwardInput, "pre_feedforward_layernorm"),
        (FeedForwardOutput, "post_feedforward_layernorm"),
    ],
    math: Math { window: Window::Alternating { period: 6 }, ..gemma2::FAMILY.math },
    keep: &["*vision_tower*", "*multi_modal_projector*", "*lm_head"],
    ..gemma2::FAMILY
};
