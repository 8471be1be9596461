//! The settings of SmoothQuant.

use super::option::{AlgorithmOption, SHARE, option, share};

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SmoothQuantSettings {
    /// How much of the difficulty goes from inputs into weights.
    pub alpha: f32,
}

impl SmoothQuantSettings {
    /// Half of it.
    pub const DEFAULTS: Self = Self { alpha: 0.5 };
}

/// What can be set.
pub(super) const OPTIONS: &[AlgorithmOption] =
    &[option!(SmoothQuant.alpha, "alpha", SHARE, "how much of the difficulty goes from inputs into weights", share)];
