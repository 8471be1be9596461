//! The settings of QuaRot.

use kvant_quant::options::{OptionRow, Values};
use serde::{Deserialize, Serialize};

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotateSettings {
    /// The seed of the matrices.
    pub seed: u32,
    /// Whether the values of attentions are rotated in their heads.
    pub heads: bool,
}

impl RotateSettings {
    /// The residual stream and the heads.
    pub const DEFAULTS: Self = Self { seed: 1, heads: true };
}

/// Its options.
pub(super) const OPTIONS: &[OptionRow] = &[
    OptionRow { name: "seed", values: Values::COUNT, about: "what the rotations are drawn from" },
    OptionRow {
        name: "heads",
        values: Values::SWITCH,
        about: "whether the values of attentions are rotated in their heads",
    },
];
