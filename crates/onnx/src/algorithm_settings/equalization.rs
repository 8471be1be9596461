//! The settings of equalization across layers.

use super::option::{AlgorithmOption, COUNT, SWITCH, Shown, count, option, switch};

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Equalization {
    /// Rounds over all pairs, at most.
    pub steps: u32,
    /// Whether biases count among the weights of their channel.
    pub bias: bool,
    /// What becomes of a Clip between two layers.
    pub clip: ClipRule,
}

impl Equalization {
    /// Until nothing moves, biases counted, bounds of Clip for each channel.
    pub const DEFAULTS: Self = Self { steps: 20, bias: true, clip: ClipRule::Min };
}

/// What can be set.
pub(super) const OPTIONS: &[AlgorithmOption] = &[
    option!(Equalization.steps, "steps", COUNT, "rounds over all pairs of layers, at most", count),
    option!(Equalization.bias, "bias", SWITCH, "whether biases count among the weights of their channel", switch),
    option!(
        Equalization.clip,
        "clip",
        "min, relu or keep",
        "a Clip between layers gets a bound for each channel, none (which changes the function), or keeps them apart",
        ClipRule::named
    ),
];

/// What becomes of a Clip between two layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClipRule {
    /// `Clip(0, 6)` becomes `Min(Relu(x), 6 s[c])`: the function stays what it is.
    Min,
    /// `Clip(0, 6)` becomes `Relu(x)`, as in the paper: values beyond the bound are no longer cut.
    Relu,
    /// It stays, and the layers are not a pair.
    Keep,
}

impl ClipRule {
    const ALL: &[(&'static str, Self)] = &[("min", Self::Min), ("relu", Self::Relu), ("keep", Self::Keep)];

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(spelling, _)| *spelling == name).map(|(_, rule)| *rule)
    }
}

impl Shown for ClipRule {
    fn shown(&self) -> String {
        Self::ALL.iter().find(|(_, rule)| rule == self).map_or_else(String::new, |(name, _)| (*name).to_owned())
    }
}
