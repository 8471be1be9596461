//! Qwen3.5, text-only and inside the multimodal checkpoints. Qwen3.6 and 3.8 are the same architecture.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::qwen3_next;
use super::recurrent::Recurrent;
use super::role::Role::{Output, RecurrentDecay, RecurrentGate, RecurrentInput, RecurrentStrength};
use super::role::RowOrder;

/// Gated delta net whose inputs are four matrices.
pub const GATED_DELTA: Recurrent = Recurrent {
    linears: &[
        (RecurrentInput, "linear_attn.in_proj_qkv"),
        (RecurrentGate, "linear_attn.in_proj_z"),
        (RecurrentStrength, "linear_attn.in_proj_b"),
        (RecurrentDecay, "linear_attn.in_proj_a"),
        (Output, "linear_attn.out_proj"),
    ],
    rows: RowOrder::Stacked,
    ..qwen3_next::GATED_DELTA
};

/// The description.
pub const FAMILY: Family = Family {
    name: "qwen3_5",
    summary: "Qwen3.5, 3.6 and 3.8: gated delta net in three of four blocks, gated attention",
    model_types: &["qwen3_5_text", "qwen3_5"],
    architectures: &["Qwen3_5ForCausalLM", "Qwen3_5TextModel", "Qwen3_5Model", "Qwen3_5ForConditionalGeneration"],
    recurrent: Some(GATED_DELTA),
    moe: None,
    keep: &["lm_head", "model.visual.*", "*mtp*"],
    ..qwen3_next::FAMILY
};
