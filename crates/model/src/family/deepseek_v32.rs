//! DeepSeek V3.2.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::math::{Indexer, Math, Pairing};
use super::role::NormSite::{AttentionInput, FeedForwardInput, IndexKey, KeyValueLatent, QueryLatent};
use super::role::Role::{self, IndexQuery, IndexWeights};
use super::{deepseek_v2, deepseek_v3};

/// The description.
pub const FAMILY: Family = Family {
    name: "deepseek_v32",
    summary: "DeepSeek V3.2: V3 whose tokens attend to those keys that an indexer chooses",
    model_types: &["deepseek_v32"],
    architectures: &["DeepseekV32ForCausalLM", "DeepseekV32Model"],
    attention: &[
        deepseek_v2::FAMILY.attention[1],
        deepseek_v2::FAMILY.attention[2],
        deepseek_v2::FAMILY.attention[3],
        deepseek_v2::FAMILY.attention[4],
        (IndexQuery, "self_attn.indexer.wq_b"),
        (Role::IndexKey, "self_attn.indexer.wk"),
        (IndexWeights, "self_attn.indexer.weights_proj"),
        deepseek_v2::FAMILY.attention[5],
    ],
    norms: &[
        (AttentionInput, "input_layernorm"),
        (QueryLatent, "self_attn.q_a_layernorm"),
        (KeyValueLatent, "self_attn.kv_a_layernorm"),
        (IndexKey, "self_attn.indexer.k_norm"),
        (FeedForwardInput, "post_attention_layernorm"),
    ],
    math: Math { indexer: Some(Indexer::Keys(Pairing::Halves)), ..deepseek_v3::FAMILY.math },
    keep: &["lm_head", "*mlp.gate", "model.layers.61.*", "*self_attn*"],
    ..deepseek_v3::FAMILY
};
