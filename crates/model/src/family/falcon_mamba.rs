//! Falcon Mamba.
//!
//! Data only; the fields are explained in [`super::description`].

use super::description::Family;
use super::mamba;
use super::recurrent::{Mamba1Norms, Recurrent, RecurrentMixer};

/// The description.
pub const FAMILY: Family = Family {
    name: "falcon_mamba",
    summary: "Falcon Mamba: Mamba with norms without weights inside of its mixers",
    model_types: &["falcon_mamba"],
    architectures: &["FalconMambaForCausalLM", "FalconMambaModel"],
    recurrent: Some(Recurrent { mixer: RecurrentMixer::Mamba1 { norms: Mamba1Norms::Plain }, ..mamba::MAMBA1 }),
    ..mamba::FAMILY
};
