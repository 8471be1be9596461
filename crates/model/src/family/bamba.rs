//! Bamba.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::MODEL_TRUNK;
use super::description::{Family, Linears, Norms, Trunk};
use super::llama;
use super::math::{Math, Pairing, Positions};
use super::recurrent::{Mamba2Norm, Recurrent, RecurrentBlocks, RecurrentMixer, RecurrentParameter};
use super::role::NormSite::{AttentionInput, FeedForwardInput, Final, RecurrentOutput};
use super::role::Role::{Down, Gate, Output, RecurrentInputGate, Up};
use super::role::{NormKind, RowOrder};

/// Mamba 2 under the names of Bamba, Granite and Falcon-H1.
pub const MAMBA2: Recurrent = Recurrent {
    mixer: RecurrentMixer::Mamba2 { norm: Mamba2Norm::AllHeads },
    linears: &[(RecurrentInputGate, "mamba.in_proj"), (Output, "mamba.out_proj")],
    rows: RowOrder::Stacked,
    parameters: &[
        (RecurrentParameter::Convolution, "mamba.conv1d"),
        (RecurrentParameter::DecayLog, "mamba.A_log"),
        (RecurrentParameter::StepBias, "mamba.dt_bias"),
        (RecurrentParameter::Skip, "mamba.D"),
    ],
    norm_kind: NormKind::Rms,
    convolution_bias: Some(("mamba_conv_bias", true)),
    blocks: RecurrentBlocks::AllButListed { key: "attn_layer_indices", without: true },
};

/// Its feed-forward network.
pub const MLP: Linears =
    &[(Gate, "feed_forward.gate_proj"), (Up, "feed_forward.up_proj"), (Down, "feed_forward.down_proj")];

/// The norms of its blocks.
pub const NORMS: Norms =
    &[(AttentionInput, "input_layernorm"), (RecurrentOutput, "mamba.norm"), (FeedForwardInput, "pre_ff_layernorm")];

/// The description.
pub const FAMILY: Family = Family {
    name: "bamba",
    summary: "Bamba: Mamba 2 in most blocks, attention with rotary embeddings of half heads in the others",
    model_types: &["bamba"],
    architectures: &["BambaForCausalLM", "BambaModel"],
    trunk: Trunk { norms: &[(Final, "final_layernorm")], ..MODEL_TRUNK },
    recurrent: Some(MAMBA2),
    mlp: MLP,
    norms: NORMS,
    math: Math { positions: Positions::rotary(Pairing::Halves, 0.5), ..Math::LLAMA },
    ..llama::FAMILY
};
