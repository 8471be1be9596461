//! Mamba 2 without attention.
//!
//! Data only; the fields are explained in [`super::description`].

use super::common::MODEL_TRUNK;
use super::description::{Family, Trunk};
use super::math::{Math, Positions, Residual};
use super::recurrent::{Recurrent, RecurrentBlocks, RecurrentParameter};
use super::role::NormSite::{AttentionInput, Final, RecurrentOutput};
use super::role::Role::{Output, RecurrentInputGate};
use super::{bamba, llama};

/// Mamba 2 under names without the kind of the mixer.
pub const MAMBA2: Recurrent = Recurrent {
    linears: &[(RecurrentInputGate, "mixer.in_proj"), (Output, "mixer.out_proj")],
    parameters: &[
        (RecurrentParameter::Convolution, "mixer.conv1d"),
        (RecurrentParameter::DecayLog, "mixer.A_log"),
        (RecurrentParameter::StepBias, "mixer.dt_bias"),
        (RecurrentParameter::Skip, "mixer.D"),
    ],
    convolution_bias: Some(("use_conv_bias", true)),
    blocks: RecurrentBlocks::Every,
    ..bamba::MAMBA2
};

/// The description.
pub const FAMILY: Family = Family {
    name: "mamba2",
    summary: "Mamba 2: state-space layers only",
    model_types: &["mamba2"],
    architectures: &["Mamba2ForCausalLM", "Mamba2Model"],
    trunk: Trunk { path: "backbone", embedding: "embeddings", norms: &[(Final, "norm_f")], ..MODEL_TRUNK },
    attention: &[],
    recurrent: Some(MAMBA2),
    mlp: &[],
    norms: &[(AttentionInput, "norm"), (RecurrentOutput, "mixer.norm")],
    math: Math { residual: Residual::Single, positions: Positions::None, ..Math::LLAMA },
    ..llama::FAMILY
};
