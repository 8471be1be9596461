//! The loops that quantize and dequantize in place, compiled per instruction set. Not the scales that they are given.

use crate::parameters::{Affine, EPSILON};
use kvant_numeric::ComputeDType;
use kvant_numeric::arithmetic::{round_to_bf16, round_to_f16};
use kvant_numeric::format::{Int, MiniFloat};
use kvant_numeric::simd::Loop;

/// 1.5 * 2^23: adding it to a number of magnitude below 2^22 and taking it away rounds to an integer, half to even.
const TO_INTEGER: f32 = 12_582_912.0;

/// `y = round(clamp(rne(x / scale), min - zero_point, max - zero_point) * scale)`, dividing by way of the reciprocal.
#[inline(always)]
fn int_value(value: f32, inverse: f32, scale: f32, (low, high): (f32, f32), round: impl Fn(f32) -> f32) -> f32 {
    // Bounds are integers, so clamping before rounding gives what clamping after would. Plain comparisons let NaN through.
    let scaled = value * inverse;
    let above = if scaled < low { low } else { scaled };
    let clamped = if above > high { high } else { above };
    round(((clamped + TO_INTEGER) - TO_INTEGER) * scale)
}

#[inline(always)]
fn bounds(format: Int, zero_point: f64) -> (f32, f32) {
    ((format.min() as f64 - zero_point) as f32, (format.max() as f64 - zero_point) as f32)
}

/// Makes a loop of a type whose `each` rounds results with a function: that of its arithmetic.
macro_rules! rounding_in_arithmetic {
    ($type:ident) => {
        impl Loop for $type<'_> {
            type Output = ();

            #[inline(always)]
            fn run(self) {
                match self.arithmetic {
                    ComputeDType::F32 => self.each(|value| value),
                    ComputeDType::Bf16 => self.each(round_to_bf16),
                    ComputeDType::F16 => self.each(round_to_f16),
                }
            }
        }
    };
}

/// Integers whose scales hold for `group` elements of a row of `width`. Formats have at most 16 bits, zero points are whole.
pub(super) struct IntTiles<'a> {
    pub(super) format: Int,
    pub(super) arithmetic: ComputeDType,
    pub(super) values: &'a mut [f32],
    pub(super) width: usize,
    pub(super) group: usize,
    pub(super) affines: &'a [Affine],
}

rounding_in_arithmetic!(IntTiles);

impl IntTiles<'_> {
    #[inline(always)]
    fn each(self, round: impl Fn(f32) -> f32) {
        let across = self.width.div_ceil(self.group);
        for (row, affines) in self.values.chunks_mut(self.width).zip(self.affines.chunks(across)) {
            for (tile, affine) in row.chunks_mut(self.group).zip(affines) {
                let (scale, bounds) = (affine.scale, bounds(self.format, affine.zero_point));
                let inverse = 1.0 / scale;
                for value in tile {
                    *value = int_value(*value, inverse, scale, bounds, &round);
                }
            }
        }
    }
}

/// Integers with a scale a feature.
pub(super) struct IntFeatures<'a> {
    pub(super) format: Int,
    pub(super) arithmetic: ComputeDType,
    pub(super) rows: &'a mut [f32],
    pub(super) columns: usize,
    pub(super) affines: &'a [Affine],
}

rounding_in_arithmetic!(IntFeatures);

impl IntFeatures<'_> {
    #[inline(always)]
    fn each(self, round: impl Fn(f32) -> f32) {
        for row in self.rows.chunks_mut(self.columns) {
            for (value, affine) in row.iter_mut().zip(self.affines) {
                let bounds = bounds(self.format, affine.zero_point);
                *value = int_value(*value, 1.0 / affine.scale, affine.scale, bounds, &round);
            }
        }
    }
}

/// `y = round(format(quotient(x / scale)) * scale)`. NaN stays.
#[inline(always)]
fn float_value(
    value: f32,
    format: MiniFloat,
    (divisor, scale): (f32, f32),
    quotient: impl Fn(f32) -> f32,
    round: impl Fn(f32) -> f32,
) -> f32 {
    let restored = round(format.round(quotient(value / divisor)) * scale);
    if value.is_nan() { value } else { restored }
}

/// The divisor of a value: scales of activations may be too small for their type.
#[inline(always)]
fn divisor(scale: f32) -> f32 {
    if scale == 0.0 { EPSILON } else { scale }
}

/// Small floats whose scales hold for `group` elements of a row of `width`.
pub(super) struct FloatTiles<'a> {
    pub(super) format: MiniFloat,
    /// The precision of quotients: that of the model, or f32.
    pub(super) quotient: ComputeDType,
    pub(super) arithmetic: ComputeDType,
    pub(super) values: &'a mut [f32],
    pub(super) width: usize,
    pub(super) group: usize,
    pub(super) scales: &'a [f32],
}

impl Loop for FloatTiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        // With the format's constants written out the compiler makes shorter loops.
        match self.format {
            MiniFloat::E4M3 => self.of(MiniFloat::E4M3),
            MiniFloat::E2M1 => self.of(MiniFloat::E2M1),
            format => self.of(format),
        }
    }
}

impl FloatTiles<'_> {
    #[inline(always)]
    fn of(self, format: MiniFloat) {
        match (self.quotient, self.arithmetic) {
            (_, ComputeDType::F32) => self.each(format, |value| value, |value| value),
            (ComputeDType::F32, ComputeDType::Bf16) => self.each(format, |value| value, round_to_bf16),
            (ComputeDType::F32, ComputeDType::F16) => self.each(format, |value| value, round_to_f16),
            (_, ComputeDType::Bf16) => self.each(format, round_to_bf16, round_to_bf16),
            (_, ComputeDType::F16) => self.each(format, round_to_f16, round_to_f16),
        }
    }

    #[inline(always)]
    fn each(self, format: MiniFloat, quotient: impl Fn(f32) -> f32, round: impl Fn(f32) -> f32) {
        let across = self.width.div_ceil(self.group);
        for (row, scales) in self.values.chunks_mut(self.width).zip(self.scales.chunks(across)) {
            for (tile, scale) in row.chunks_mut(self.group).zip(scales) {
                let scales = (divisor(*scale), *scale);
                for value in tile {
                    *value = float_value(*value, format, scales, &quotient, &round);
                }
            }
        }
    }
}

/// Small floats with a scale a feature.
pub(super) struct FloatFeatures<'a> {
    pub(super) format: MiniFloat,
    pub(super) arithmetic: ComputeDType,
    pub(super) rows: &'a mut [f32],
    pub(super) columns: usize,
    pub(super) scales: &'a [f32],
}

rounding_in_arithmetic!(FloatFeatures);

impl FloatFeatures<'_> {
    #[inline(always)]
    fn each(self, round: impl Fn(f32) -> f32) {
        for row in self.rows.chunks_mut(self.columns) {
            for (value, scale) in row.iter_mut().zip(self.scales) {
                *value = float_value(*value, self.format, (divisor(*scale), *scale), &round, &round);
            }
        }
    }
}

/// The scales of blocks under that of the tensor, as the incumbent finds them for activations: rounded twice, unlike those
/// of weights, and zero where they are too small. NaN where a block holds more than numbers.
pub(super) struct BlockScales<'a> {
    /// The type of the scales of blocks.
    pub(super) format: MiniFloat,
    /// The largest element.
    pub(super) largest: f32,
    pub(super) global_scale: f32,
    pub(super) amaxes: &'a [f32],
    pub(super) scales: &'a mut [f32],
}

impl Loop for BlockScales<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.format {
            MiniFloat::E4M3 => self.of(MiniFloat::E4M3),
            format => self.of(format),
        }
    }
}

impl BlockScales<'_> {
    #[inline(always)]
    fn of(self, format: MiniFloat) {
        for (scale, amax) in self.scales.iter_mut().zip(self.amaxes) {
            let rounded = format.round(divisor(*amax / self.largest) / self.global_scale) * self.global_scale;
            *scale = if amax.is_finite() { rounded } else { f32::NAN };
        }
    }
}

/// Casts to 16 bits and back.
pub(super) struct Casts<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) through: ComputeDType,
    pub(super) arithmetic: ComputeDType,
}

impl Loop for Casts<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for value in self.values {
            *value = self.arithmetic.round(self.through.round(*value));
        }
    }
}
