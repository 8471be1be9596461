//! The settings of SmoothQuant.

use kvant_quant::options::{OptionRow, Values};
use serde::{Deserialize, Serialize};

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SmoothQuantSettings {
    /// The share of the difficulty moved from inputs to weights.
    pub alpha: f32,
}

impl SmoothQuantSettings {
    /// Half of it.
    pub const DEFAULTS: Self = Self { alpha: 0.5 };
}

/// Its options.
pub(super) const OPTIONS: &[OptionRow] = &[OptionRow {
    name: "alpha",
    values: Values::SHARE,
    about: "how much of the difficulty goes from inputs into weights",
}];
