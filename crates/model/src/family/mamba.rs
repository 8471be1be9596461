//! Mamba without attention.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::recurrent::{Mamba1Norms, Recurrent, RecurrentBlocks, RecurrentMixer, RecurrentParameter};
use super::role::NormSite::AttentionInput;
use super::role::Role::{Output, RecurrentChoice, RecurrentInputGate, RecurrentStep};
use super::{jamba, mamba2};

/// Mamba under names without the kind of the mixer.
pub const MAMBA1: Recurrent = Recurrent {
    mixer: RecurrentMixer::Mamba1 { norms: Mamba1Norms::None },
    linears: &[
        (RecurrentInputGate, "mixer.in_proj"),
        (RecurrentChoice, "mixer.x_proj"),
        (RecurrentStep, "mixer.dt_proj"),
        (Output, "mixer.out_proj"),
    ],
    parameters: &[
        (RecurrentParameter::Convolution, "mixer.conv1d"),
        (RecurrentParameter::DecayLog, "mixer.A_log"),
        (RecurrentParameter::Skip, "mixer.D"),
    ],
    convolution_bias: Some(("use_conv_bias", true)),
    blocks: RecurrentBlocks::Every,
    ..jamba::MAMBA1
};

/// The description.
pub const FAMILY: Family = Family {
    name: "mamba",
    summary: "Mamba: selective state-space layers only",
    model_types: &["mamba"],
    architectures: &["MambaForCausalLM", "MambaModel"],
    recurrent: Some(MAMBA1),
    norms: &[(AttentionInput, "norm")],
    keep: &["lm_head", "*mixer.x_proj", "*mixer.dt_proj"],
    ..mamba2::FAMILY
};
