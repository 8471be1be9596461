//! The grid of codes, one type for each kind of scheme, so that the loop over columns is compiled for each:
//! the formulas of round to nearest on one value. Not scales, which are in `steps.rs`.

use super::rtn::{RoundingError, Rtn, TensorContext};
use super::steps::Scaled;
use crate::parameters::{Affine, EPSILON, dequantize, quantize};
use crate::quant_tensor::Codes;
use crate::scheme::{IntScheme, TensorScheme, ZeroPoint};
use kvant_numeric::ComputeDType;
use kvant_numeric::format::{Int, MiniFloat};
use kvant_numeric::ggml::Levels;
use kvant_numeric::kernel::Scaling;

/// A code as it is kept while a weight is rounded.
pub(in crate::rounding) trait Code: Copy + Default + Send + Sync {
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
pub(in crate::rounding) trait Grid: Copy + Send + Sync {
    /// Its codes.
    type Code: Code;

    /// The code of `value`, and the value that the code stands for.
    fn nearest(self, value: f32, step: Step) -> (Self::Code, f32);

    /// How far apart the values of the grid are about `value`.
    fn spacing(self, value: f32, step: Step) -> f32;
}

/// Work on the grid of a scheme, compiled for each kind of grid.
pub(in crate::rounding) trait OnGrid {
    type Output;

    fn run<G: Grid>(self, grid: G, scaled: Scaled) -> Self::Output;
}

/// Does work on the grid of a scheme. `global_scale` is that of the tensor, where it has one.
///
/// # Errors
/// [`RoundingError::NoCodes`].
pub(in crate::rounding) fn on_grid<W: OnGrid>(
    scheme: TensorScheme,
    context: TensorContext,
    global_scale: Option<f32>,
    work: W,
) -> Result<W::Output, RoundingError> {
    let is_whole = |int: IntScheme| int.format.bits() <= 8 && int.zero_point != ZeroPoint::Float;
    Ok(match scheme {
        TensorScheme::Int(int) if is_whole(int) => work.run(Whole::new(int.format), Scaled::ByReciprocals),
        TensorScheme::Int(int) => work.run(Any { format: int.format }, Scaled::ByReciprocals),
        TensorScheme::Float(float) => {
            let format = float.format;
            match Rtn::new(scheme, context)?.scaling(float) {
                Scaling::PowerOfTwo => work.run(Float { format, quotient: Times }, Scaled::ByReciprocals),
                Scaling::Divide(ComputeDType::F32) => work.run(Float { format, quotient: Divided }, Scaled::ByDivision),
                Scaling::Divide(arithmetic) => {
                    work.run(Float { format, quotient: DividedIn(arithmetic) }, Scaled::ByDivision)
                }
            }
        }
        TensorScheme::Progressive { first, second } => {
            let (first, arithmetic, global_scale) = (first.format, context.arithmetic, global_scale.unwrap_or(1.0));
            if is_whole(second) {
                let second = Whole::new(second.format);
                return Ok(work.run(Staged { first, arithmetic, global_scale, second }, Scaled::ByReciprocals));
            }
            let second = Any { format: second.format };
            work.run(Staged { first, arithmetic, global_scale, second }, Scaled::ByReciprocals)
        }
        TensorScheme::Gguf(blocks) => match blocks.levels {
            Levels::Integers { zero, low, high } => {
                let [zero, low, high] = [zero, low, high].map(f32::from);
                work.run(BlockIntegers { zero, low, high }, Scaled::ByReciprocals)
            }
            Levels::Iq4 => work.run(Iq4, Scaled::ByReciprocals),
            Levels::E2m1 => work.run(Float { format: MiniFloat::E2M1, quotient: Times }, Scaled::ByReciprocals),
        },
        TensorScheme::Block(_) | TensorScheme::Cast(_) => return Err(RoundingError::NoCodes(scheme)),
    })
}

/// A scale as a grid needs it.
#[derive(Clone, Copy)]
pub(in crate::rounding) struct Step {
    /// The multiplier of the format's values.
    pub(in crate::rounding) scale: f32,
    /// The divisor of values or its reciprocal, depending on the [scaling](super::steps::Scaled).
    pub(in crate::rounding) divisor: f32,
    /// The code of zero.
    pub(in crate::rounding) zero_point: f64,
}

impl Step {
    /// Scales may be negative, or zero, which is no divisor.
    #[inline(always)]
    pub(in crate::rounding) fn new(scale: f32, zero_point: f64, scaled: Scaled) -> Step {
        let divisor = if scale.abs() > 0.0 { scale } else { EPSILON };
        let divisor = if scaled == Scaled::ByDivision { divisor } else { 1.0 / divisor };
        Step { scale, divisor, zero_point }
    }
}

/// 1.5 * 2^23: adding it to a number of magnitude below 2^22 rounds to an integer, half to even, which is then in the
/// low bits.
const TO_INTEGER: f32 = 12_582_912.0;

/// Integers of at most eight bits with whole zero points; steps hold reciprocals.
#[derive(Clone, Copy)]
pub(in crate::rounding) struct Whole {
    pub(in crate::rounding) min: f32,
    pub(in crate::rounding) max: f32,
}

impl Whole {
    pub(in crate::rounding) fn new(format: Int) -> Whole {
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

    #[inline(always)]
    fn spacing(self, _: f32, step: Step) -> f32 {
        step.scale.abs()
    }
}

/// Integers of any width, with any zero point; steps hold reciprocals.
#[derive(Clone, Copy)]
pub(in crate::rounding) struct Any {
    pub(in crate::rounding) format: Int,
}

impl Grid for Any {
    type Code = i64;

    #[inline(always)]
    fn nearest(self, value: f32, step: Step) -> (i64, f32) {
        let code = quantize(self.format, value, step.divisor, step.zero_point);
        (code, dequantize(code, Affine { scale: step.scale, zero_point: step.zero_point }))
    }

    #[inline(always)]
    fn spacing(self, _: f32, step: Step) -> f32 {
        step.scale.abs()
    }
}

/// Brings a value to its scale.
pub(in crate::rounding) trait Quotient: Copy + Send + Sync {
    fn of(self, value: f32, divisor: f32) -> f32;
}

/// Times the reciprocal that steps hold.
#[derive(Clone, Copy)]
pub(in crate::rounding) struct Times;
/// The quotient in f32.
#[derive(Clone, Copy)]
pub(in crate::rounding) struct Divided;
/// The quotient rounded to the model's type.
#[derive(Clone, Copy)]
pub(in crate::rounding) struct DividedIn(pub(in crate::rounding) ComputeDType);

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
pub(in crate::rounding) struct Float<Q> {
    pub(in crate::rounding) format: MiniFloat,
    pub(in crate::rounding) quotient: Q,
}

impl<Q: Quotient> Grid for Float<Q> {
    type Code = u8;

    #[inline(always)]
    fn nearest(self, value: f32, step: Step) -> (u8, f32) {
        let scaled = self.quotient.of(value, step.divisor);
        (self.format.encode(scaled), self.format.round(scaled) * step.scale)
    }

    #[inline(always)]
    fn spacing(self, value: f32, step: Step) -> f32 {
        let scaled = self.quotient.of(value, step.divisor).abs().min(self.format.max());
        let exponent = ((scaled.to_bits() >> 23) as i32 - 127).max(1 - self.format.bias());
        let ulp = f32::from_bits(((exponent - self.format.mantissa_bits() as i32 + 127) as u32) << 23);
        ulp * step.scale.abs()
    }
}

/// Integers of blocks of GGUF; steps hold reciprocals, and the minimum, which is subtracted, as zero point.
#[derive(Clone, Copy)]
pub(in crate::rounding) struct BlockIntegers {
    pub(in crate::rounding) zero: f32,
    pub(in crate::rounding) low: f32,
    pub(in crate::rounding) high: f32,
}

impl Grid for BlockIntegers {
    type Code = u8;

    #[inline(always)]
    fn nearest(self, value: f32, step: Step) -> (u8, f32) {
        let minimum = step.zero_point as f32;
        let level = ((value + minimum) * step.divisor).max(self.low - self.zero).min(self.high - self.zero);
        let level = (level + TO_INTEGER) - TO_INTEGER;
        ((level + self.zero + TO_INTEGER).to_bits() as u8, level * step.scale - minimum)
    }

    #[inline(always)]
    fn spacing(self, _: f32, step: Step) -> f32 {
        step.scale.abs()
    }
}

/// The uneven levels of IQ4 blocks of GGUF; steps hold reciprocals.
#[derive(Clone, Copy)]
pub(in crate::rounding) struct Iq4;

impl Grid for Iq4 {
    type Code = u8;

    #[inline(always)]
    fn nearest(self, value: f32, step: Step) -> (u8, f32) {
        let level = value * step.divisor;
        let (mut code, mut nearest) = (0, f32::from(Levels::IQ4[0]));
        for pair in Levels::IQ4.windows(2) {
            let (low, high) = (f32::from(pair[0]), f32::from(pair[1]));
            let is_above = level > (low + high) / 2.0;
            code += u8::from(is_above);
            nearest = if is_above { high } else { nearest };
        }
        (code, nearest * step.scale)
    }

    #[inline(always)]
    fn spacing(self, value: f32, step: Step) -> f32 {
        let code = usize::from(self.nearest(value, step).0).max(1);
        (f32::from(Levels::IQ4[code]) - f32::from(Levels::IQ4[code - 1])) * step.scale.abs()
    }
}

/// Integers of the values of a float with one scale for the tensor.
#[derive(Clone, Copy)]
pub(in crate::rounding) struct Staged<G> {
    pub(in crate::rounding) first: MiniFloat,
    pub(in crate::rounding) arithmetic: ComputeDType,
    pub(in crate::rounding) global_scale: f32,
    pub(in crate::rounding) second: G,
}

impl<G: Grid> Grid for Staged<G> {
    type Code = G::Code;

    #[inline(always)]
    fn nearest(self, value: f32, step: Step) -> (G::Code, f32) {
        let on_first = self.first.round(self.arithmetic.round(value / self.global_scale));
        let (code, value) = self.second.nearest(on_first, step);
        (code, value * self.global_scale)
    }

    #[inline(always)]
    fn spacing(self, value: f32, step: Step) -> f32 {
        self.second.spacing(value / self.global_scale, step) * self.global_scale
    }
}
