//! OLMo 2.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::llama;
use super::math::{Math, QueryKeyNorm};
use super::role::NormSite::{self, AttentionOutput, FeedForwardOutput};

/// The description.
pub const FAMILY: Family = Family {
    name: "olmo2",
    summary: "OLMo 2: norms after each branch and over all queries and keys",
    model_types: &["olmo2"],
    architectures: &["Olmo2ForCausalLM", "Olmo2Model"],
    norms: &[
        (NormSite::Query, "self_attn.q_norm"),
        (NormSite::Key, "self_attn.k_norm"),
        (AttentionOutput, "post_attention_layernorm"),
        (FeedForwardOutput, "post_feedforward_layernorm"),
    ],
    math: Math { query_key_norm: QueryKeyNorm::AllHeads, ..Math::LLAMA },
    ..llama::FAMILY
};
