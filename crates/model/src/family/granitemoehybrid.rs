//! Granite 4, dense and with experts.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::{Family, Moe};
use super::math::{Math, Positions};
use super::recurrent::{Recurrent, RecurrentBlocks};
use super::role::NormSite::{AttentionInput, FeedForwardInput, RecurrentOutput};
use super::role::Role::{Down, GateUp};
use super::{bamba, granite, granitemoe};

/// The description.
pub const FAMILY: Family = Family {
    name: "granitemoehybrid",
    summary: "Granite 4: Mamba 2 in most blocks, attention in the others, a shared network and perhaps routed experts",
    model_types: &["granitemoehybrid"],
    architectures: &["GraniteMoeHybridForCausalLM", "GraniteMoeHybridModel"],
    recurrent: Some(Recurrent { blocks: RecurrentBlocks::Every, ..bamba::MAMBA2 }),
    mlp: &[],
    moe: match granitemoe::FAMILY.moe {
        Some(moe) => Some(Moe {
            // The only feed-forward network of models without experts.
            shared: &[(GateUp, "shared_mlp.input_linear"), (Down, "shared_mlp.output_linear")],
            ..moe
        }),
        None => None,
    },
    norms: &[
        (AttentionInput, "input_layernorm"),
        (RecurrentOutput, "mamba.norm"),
        (FeedForwardInput, "post_attention_layernorm"),
    ],
    math: Math { positions: Positions::RotaryIfNamed("position_embedding_type"), ..granite::FAMILY.math },
    keep: &["lm_head", "*router*"],
    ..granite::FAMILY
};
