//! In what precision a forward pass computes.

use crate::arithmetic::{ComputeDType, round_to_bf16};

/// The precision of activations and of results computed from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Precision {
    /// Everything in `f32`.
    #[default]
    F32,
    /// Activations are bfloat16: every operation computes in `f32` and rounds its result, ties to even, as frameworks do
    /// with a model of that type. They are still kept as `f32`.
    Bf16,
}

impl Precision {
    /// The arithmetic that tools use on values of this precision.
    pub fn arithmetic(self) -> ComputeDType {
        match self {
            Precision::F32 => ComputeDType::F32,
            Precision::Bf16 => ComputeDType::Bf16,
        }
    }

    /// The value as this precision has it.
    #[inline(always)]
    pub fn round(self, value: f32) -> f32 {
        match self {
            Precision::F32 => value,
            Precision::Bf16 => round_to_bf16(value),
        }
    }
}
