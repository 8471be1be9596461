//! The grid of codes, one type for each kind of scheme, so that the loop over columns is compiled for each:
//! the formulas of round to nearest on one value. Not scales, which are in `steps.rs`.

use crate::parameters::{Affine, dequantize, quantize};
use crate::quant_tensor::Codes;
use kvant_numeric::ComputeDType;
use kvant_numeric::format::{Int, MiniFloat};

/// A code as it is kept while a weight is rounded.
pub(super) trait Code: Copy + Default + Send + Sync {
    /// The codes of a format with this number of bits.
    fn collect(codes: Vec<Self>, bits: u32) -> Codes;
}

impl Code for u8 {
    fn collect(codes: Vec<u8>, _bits: u32) -> Codes {
        Codes::Bytes(codes)
    }
}

impl Code for i64 {
    fn collect(codes: Vec<i64>, bits: u32) -> Codes {
        if bits > 8 { Codes::Wide(codes) } else { Codes::Bytes(codes.into_iter().map(|code| code as u8).collect()) }
    }
}

/// Rounds to the nearest value of a scale.
pub(super) trait Grid: Copy + Send + Sync {
    /// Its codes.
    type Code: Code;

    /// The code of `value`, and the value that the code stands for.
    fn nearest(self, value: f32, step: Step) -> (Self::Code, f32);
}

/// A scale as a grid needs it.
#[derive(Clone, Copy)]
pub(super) struct Step {
    /// The multiplier of the format's values.
    pub(super) scale: f32,
    /// The divisor of values or its reciprocal, depending on the [scaling](super::steps::Scaled).
    pub(super) divisor: f32,
    /// The code of zero.
    pub(super) zero_point: f64,
}

/// 1.5 * 2^23: adding it to a number of magnitude below 2^22 rounds to an integer, half to even, which is then in the
/// low bits.
const TO_INTEGER: f32 = 12_582_912.0;

/// Integers of at most eight bits with whole zero points; steps hold reciprocals.
#[derive(Clone, Copy)]
pub(super) struct Whole {
    pub(super) min: f32,
    pub(super) max: f32,
}

impl Whole {
    pub(super) fn new(format: Int) -> Whole {
        Whole { min: format.min() as f32, max: format.max() as f32 }
    }
}

impl Grid for Whole {
    type Code = u8;

    #[inline(always)]
    fn nearest(self, value: f32, step: Step) -> (u8, f32) {
        let zero_point = step.zero_point as f32;
        let clamped = (value * step.divisor).max(self.min - zero_point).min(self.max - zero_point);
        let rounded = (clamped + TO_INTEGER) - TO_INTEGER;
        ((rounded + zero_point + TO_INTEGER).to_bits() as u8, rounded * step.scale)
    }
}

/// Integers of any width, with any zero point; steps hold reciprocals.
#[derive(Clone, Copy)]
pub(super) struct Any {
    pub(super) format: Int,
}

impl Grid for Any {
    type Code = i64;

    #[inline(always)]
    fn nearest(self, value: f32, step: Step) -> (i64, f32) {
        let code = quantize(self.format, value, step.divisor, step.zero_point);
        (code, dequantize(code, Affine { scale: step.scale, zero_point: step.zero_point }))
    }
}

/// Brings a value to its scale.
pub(super) trait Quotient: Copy + Send + Sync {
    fn of(self, value: f32, divisor: f32) -> f32;
}

/// Times the reciprocal that steps hold.
#[derive(Clone, Copy)]
pub(super) struct Times;
/// The quotient in f32.
#[derive(Clone, Copy)]
pub(super) struct Divided;
/// The quotient rounded to the model's type.
#[derive(Clone, Copy)]
pub(super) struct DividedIn(pub(super) ComputeDType);

impl Quotient for Times {
    #[inline(always)]
    fn of(self, value: f32, reciprocal: f32) -> f32 {
        value * reciprocal
    }
}

impl Quotient for Divided {
    #[inline(always)]
    fn of(self, value: f32, divisor: f32) -> f32 {
        value / divisor
    }
}

impl Quotient for DividedIn {
    #[inline(always)]
    fn of(self, value: f32, divisor: f32) -> f32 {
        self.0.round(value / divisor)
    }
}

/// Floats of at most eight bits.
#[derive(Clone, Copy)]
pub(super) struct Float<Q> {
    pub(super) format: MiniFloat,
    pub(super) quotient: Q,
}

impl<Q: Quotient> Grid for Float<Q> {
    type Code = u8;

    #[inline(always)]
    fn nearest(self, value: f32, step: Step) -> (u8, f32) {
        let scaled = self.quotient.of(value, step.divisor);
        (self.format.encode(scaled), self.format.round(scaled) * step.scale)
    }
}

/// Integers of the values of a float with one scale for the tensor.
#[derive(Clone, Copy)]
pub(super) struct Staged<G> {
    pub(super) first: MiniFloat,
    pub(super) arithmetic: ComputeDType,
    pub(super) global_scale: f32,
    pub(super) second: G,
}

impl<G: Grid> Grid for Staged<G> {
    type Code = G::Code;

    #[inline(always)]
    fn nearest(self, value: f32, step: Step) -> (G::Code, f32) {
        let on_first = self.first.round(self.arithmetic.round(value / self.global_scale));
        let (code, value) = self.second.nearest(on_first, step);
        (code, value * self.global_scale)
    }
}
