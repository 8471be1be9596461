//! The settings of QuaRot.

use super::option::{AlgorithmOption, COUNT, SWITCH, count, option, switch};

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuarotSettings {
    /// What the matrices are drawn from.
    pub seed: u32,
    /// Whether the values of attentions are rotated in their heads.
    pub heads: bool,
}

impl QuarotSettings {
    /// The residual stream and the heads.
    pub const DEFAULTS: Self = Self { seed: 1, heads: true };
}

/// What can be set.
pub(super) const OPTIONS: &[AlgorithmOption] = &[
    option!(Quarot.seed, "seed", COUNT, "what the rotations are drawn from", count),
    option!(Quarot.heads, "heads", SWITCH, "whether the values of attentions are rotated in their heads", switch),
];
