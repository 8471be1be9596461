//! The settings of GPTQ.

use super::option::{AlgorithmOption, SHARE, SWITCH, option, share, switch};

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GptqSettings {
    /// What is added to the diagonal of the Hessian: this share of its mean.
    pub damping: f32,
    /// Whether the columns with the largest inputs are rounded first.
    pub activation_order: bool,
}

impl GptqSettings {
    /// A damping of 1 %, columns with the largest inputs first.
    pub const DEFAULTS: Self = Self { damping: 0.01, activation_order: true };
}

/// What can be set.
pub(super) const OPTIONS: &[AlgorithmOption] = &[
    option!(Gptq.damping, "damping", SHARE, "what is added to the Hessian's diagonal: a share of its mean", share),
    option!(
        Gptq.activation_order,
        "order",
        SWITCH,
        "whether columns with the largest inputs are rounded first",
        switch
    ),
];
