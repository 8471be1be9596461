//! The language model of Llama 3.2 Vision.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{CrossAttention, Family};
use super::llama;

/// The description.
pub const FAMILY: Family = Family {
    name: "mllama",
    summary: "Llama 3.2 Vision: Llama with further blocks that attend to images, which text alone passes over",
    model_types: &["mllama", "mllama_text_model"],
    architectures: &["MllamaForConditionalGeneration", "MllamaForCausalLM", "MllamaTextModel"],
    cross_attention: Some(CrossAttention {
        listed: "cross_attention_layers",
        usual: &[3, 8, 13, 18, 23, 28, 33, 38],
        linears: &["cross_attn.q_proj", "cross_attn.k_proj", "cross_attn.v_proj", "cross_attn.o_proj"],
        parameters: &["cross_attn.q_norm", "cross_attn.k_norm", "cross_attn_attn_gate", "cross_attn_mlp_gate"],
    }),
    keep: &["*lm_head", "*patch_embedding", "multi_modal_projector"],
    ..llama::FAMILY
};
