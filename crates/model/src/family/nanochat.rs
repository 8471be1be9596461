//! nanochat.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::MODEL_TRUNK;
use super::description::{Family, Trunk};
use super::llama;
use super::math::{Activation, ActivationRule, Math, Pairing, Positions, QueryKeyNorm};
use super::role::NormKind;
use super::role::NormSite::{Embedding, Final};
use super::role::Role::{Down, Up};

/// The description.
pub const FAMILY: Family = Family {
    name: "nanochat",
    summary: "nanochat: RMSNorm without weights, also on embeddings and heads, squared ReLU, heads that turn backwards",
    model_types: &["nanochat"],
    architectures: &["NanoChatForCausalLM", "NanoChatModel"],
    trunk: Trunk { norms: &[(Embedding, "norm"), (Final, "norm")], ..MODEL_TRUNK },
    mlp: &[(Up, "mlp.fc1"), (Down, "mlp.fc2")],
    norm_kind: NormKind::RmsPlain,
    math: Math {
        activation: ActivationRule::Config(Activation::ReluSquared),
        positions: Positions::rotary(Pairing::SwappedHalves, 1.0),
        query_key_norm: QueryKeyNorm::PlainAfterRotary,
        ..Math::LLAMA
    },
    ..llama::FAMILY
};
