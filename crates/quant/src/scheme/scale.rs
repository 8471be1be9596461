//! How scales are chosen and stored, beside the elements. Not their granularity.

use kvant_numeric::format::ScaleRule;
use std::fmt;

/// The type of a scale that is a plain float.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ScaleType {
    /// Computed and stored in the type of the weights, as PyTorch tools do by default.
    #[default]
    Model,
    /// Computed and stored in f32.
    F32,
    /// Computed in f32, rounded to binary16.
    F16,
    /// Computed in f32, rounded to bfloat16.
    Bf16,
    /// A power of two, stored in f32.
    PowerOfTwo,
}

impl ScaleType {
    const ALL: &[(&str, ScaleType)] = &[
        ("model", ScaleType::Model),
        ("f32", ScaleType::F32),
        ("f16", ScaleType::F16),
        ("bf16", ScaleType::Bf16),
        ("pow2", ScaleType::PowerOfTwo),
    ];

    pub(super) fn parse(part: &str) -> Option<ScaleType> {
        Self::ALL.iter().find(|(name, _)| *name == part).map(|(_, scale)| *scale)
    }

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, scale)| *scale == self).map_or("model", |(name, _)| name)
    }
}

impl fmt::Display for ScaleType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the scales of a float format are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatScale {
    /// A plain float, `amax / max`.
    Plain(ScaleType),
    /// A power of two in one byte, chosen by a rule of OCP MX.
    E8m0(ScaleRule),
    /// `amax / max` in the unsigned 8-bit float e5m3 (AMDFP4).
    E5m3,
    /// Block scales in fp8 e4m3 that multiply an f32 scale of the tensor (NVFP4).
    E4m3WithGlobal,
    /// Block scales in e5m3 that multiply an f32 scale of the tensor.
    E5m3WithGlobal,
}

impl FloatScale {
    /// Returns whether an f32 scale of the whole tensor stands beside the block scales.
    pub fn has_global_scale(self) -> bool {
        matches!(self, FloatScale::E4m3WithGlobal | FloatScale::E5m3WithGlobal)
    }
}

impl fmt::Display for FloatScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FloatScale::Plain(scale) => write!(f, "{scale}"),
            FloatScale::E8m0(ScaleRule::Even) => f.write_str("e8m0"),
            FloatScale::E8m0(rule) => write!(f, "e8m0-{}", rule.name()),
            FloatScale::E5m3 => f.write_str("e5m3"),
            FloatScale::E4m3WithGlobal => f.write_str("e4m3:f32"),
            FloatScale::E5m3WithGlobal => f.write_str("e5m3:f32"),
        }
    }
}

/// The code of zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ZeroPoint {
    /// Symmetric: zero is code 0.
    #[default]
    Zero,
    /// Asymmetric: an integer within the range of codes.
    Integer,
    /// Asymmetric: a real number in f32; zero need not be exact.
    Float,
}
