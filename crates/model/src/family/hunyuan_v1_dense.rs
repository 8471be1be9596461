//! Hunyuan dense models.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{Math, QueryKeyNorm};
use super::role::NormSite::{self, AttentionInput, FeedForwardInput};

/// The description.
pub const FAMILY: Family = Family {
    name: "hunyuan_v1_dense",
    summary: "Hunyuan dense: Llama with query and key norms after the rotary embedding",
    model_types: &["hunyuan_v1_dense"],
    architectures: &["HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Model"],
    norms: &[
        (AttentionInput, "input_layernorm"),
        (NormSite::Query, "self_attn.query_layernorm"),
        (NormSite::Key, "self_attn.key_layernorm"),
        (FeedForwardInput, "post_attention_layernorm"),
    ],
    math: Math { query_key_norm: QueryKeyNorm::PerHeadAfterRotary, rotary_alpha: true, ..Math::LLAMA },
    ..llama::FAMILY
};
