//! Persimmon.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::MODEL_TRUNK;
use super::description::{Family, Trunk};
use super::gpt_neox;
use super::math::{Activation, ActivationRule, Math, Pairing, Positions};
use super::role::NormSite::{self, AttentionInput, FeedForwardInput, Final};
use super::role::Role::{Output, QueryKeyValue};

/// The description.
pub const FAMILY: Family = Family {
    name: "persimmon",
    summary: "Persimmon: norms of queries and keys, half of each head turns, squared ReLU, q, k and v in one matrix, per head",
    model_types: &["persimmon"],
    architectures: &["PersimmonForCausalLM", "PersimmonModel"],
    trunk: Trunk { norms: &[(Final, "final_layernorm")], ..MODEL_TRUNK },
    attention: &[(QueryKeyValue, "self_attn.query_key_value"), (Output, "self_attn.dense")],
    norms: &[
        (AttentionInput, "input_layernorm"),
        (NormSite::Query, "self_attn.q_layernorm"),
        (NormSite::Key, "self_attn.k_layernorm"),
        (FeedForwardInput, "post_attention_layernorm"),
    ],
    math: Math {
        activation: ActivationRule::Config(Activation::ReluSquared),
        positions: Positions::rotary(Pairing::Halves, 0.5),
        ..Math::LLAMA
    },
    keep: &["lm_head"],
    in_memory: &[],
    ..gpt_neox::FAMILY
};
