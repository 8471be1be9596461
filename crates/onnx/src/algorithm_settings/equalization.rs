//! The settings of equalization across layers.

use kvant_quant::options::{OptionRow, Values};
use serde::{Deserialize, Serialize};

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Equalization {
    /// Rounds over all pairs, at most.
    pub steps: u32,
    /// Whether biases count among the weights of their channel.
    pub bias: bool,
    /// The handling of a Clip between two layers.
    pub clip: ClipRule,
}

impl Equalization {
    /// Until nothing moves, biases counted, bounds of Clip for each channel.
    pub const DEFAULTS: Self = Self { steps: 20, bias: true, clip: ClipRule::Min };
}

/// Its options.
pub(super) const OPTIONS: &[OptionRow] = &[
    OptionRow { name: "steps", values: Values::COUNT, about: "rounds over all pairs of layers, at most" },
    OptionRow {
        name: "bias",
        values: Values::SWITCH,
        about: "whether biases count among the weights of their channel",
    },
    OptionRow {
        name: "clip",
        values: Values { text: "min, relu or keep", accepts: |text| matches!(text, "min" | "relu" | "keep") },
        about: "a Clip between layers gets a bound for each channel, none (which changes the function), or keeps them apart",
    },
];

/// The handling of a Clip between two layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClipRule {
    /// `Clip(0, 6)` becomes `Min(Relu(x), 6 s[c])`: the function stays what it is.
    Min,
    /// `Clip(0, 6)` becomes `Relu(x)`, as in the paper: values beyond the bound are no longer cut.
    Relu,
    /// It stays, and the layers are not a pair.
    Keep,
}
