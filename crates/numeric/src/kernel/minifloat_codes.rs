//! Codes of floats of at most eight bits, for slices with one scale a group. Not how scales are found.

use crate::arithmetic::Arithmetic;
use crate::format::MiniFloat;
use crate::simd::{Isa, Loop, dispatch};

/// How a value is brought to its scale before it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// `value * (1 / scale)`, exact for powers of two: what MX formats need, and faster.
    PowerOfTwo,
    /// `value / scale`, and the quotient rounded to the given precision, as a tool does that divides in the model's type.
    Divide(Arithmetic),
}

/// Codes of `values`, one byte each, with one scale for every `group` consecutive values: the value at its scale, rounded
/// half to even and saturated, as [`MiniFloat::encode`] says. Values must be finite, scales positive and finite.
pub fn encode_minifloat(
    isa: Isa,
    format: MiniFloat,
    scaling: Scaling,
    values: &[f32],
    group: usize,
    scales: &[f32],
    codes: &mut [u8],
) {
    let kernel = Encoder::new(format);
    match scaling {
        Scaling::PowerOfTwo => dispatch(isa, Codes::<0> { kernel, values, group, scales, codes }),
        Scaling::Divide(Arithmetic::F32) => dispatch(isa, Codes::<1> { kernel, values, group, scales, codes }),
        Scaling::Divide(Arithmetic::Bf16) => dispatch(isa, Codes::<2> { kernel, values, group, scales, codes }),
        Scaling::Divide(Arithmetic::F16) => dispatch(isa, Codes::<3> { kernel, values, group, scales, codes }),
    }
}

struct Codes<'a, const SCALING: u8> {
    kernel: Encoder,
    values: &'a [f32],
    group: usize,
    scales: &'a [f32],
    codes: &'a mut [u8],
}

impl<const SCALING: u8> Loop for Codes<'_, SCALING> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let groups = self.values.chunks(self.group).zip(self.codes.chunks_mut(self.group));
        for ((values, codes), scale) in groups.zip(self.scales) {
            let inverse = 1.0 / *scale;
            for (code, value) in codes.iter_mut().zip(values) {
                let scaled = match SCALING {
                    0 => value * inverse,
                    1 => value / scale,
                    2 => Arithmetic::Bf16.round(value / scale),
                    _ => Arithmetic::F16.round(value / scale),
                };
                *code = self.kernel.encode(scaled);
            }
        }
    }
}

/// A [`MiniFloat`] as the constants that branch-free encoding needs.
#[derive(Clone, Copy)]
struct Encoder {
    /// Mantissa bits of `f32` that are dropped.
    drop: u32,
    /// Subtracted from the shifted bits of a normal number to rebias its exponent.
    rebias: u32,
    /// Bits of the least normal number.
    least_normal: u32,
    /// Adding this rounds a number below the least normal one to multiples of the least subnormal one.
    to_subnormal: f32,
    max_code: u32,
    /// The sign bit, 0 for an unsigned format.
    sign: u32,
    negative_zero: bool,
}

impl Encoder {
    fn new(format: MiniFloat) -> Encoder {
        let drop = 23 - format.mantissa_bits();
        let least_exponent = (1 - format.bias() + 127) as u32;
        Encoder {
            drop,
            rebias: (127 - format.bias() as u32) << format.mantissa_bits(),
            least_normal: least_exponent << 23,
            to_subnormal: f32::from_bits((least_exponent + drop) << 23),
            max_code: u32::from(format.max_code()),
            sign: u32::from(format.is_signed()) << (format.bits() - 1),
            negative_zero: format.keeps_negative_zero(),
        }
    }

    #[inline(always)]
    fn encode(self, value: f32) -> u8 {
        let bits = value.to_bits();
        let magnitude = bits & 0x7FFF_FFFF;
        let half = (1 << (self.drop - 1)) - 1 + ((magnitude >> self.drop) & 1);
        let normal = ((magnitude + half) >> self.drop).wrapping_sub(self.rebias);
        let shifted = f32::from_bits(magnitude) + self.to_subnormal;
        let subnormal = shifted.to_bits().wrapping_sub(self.to_subnormal.to_bits());
        let code = if magnitude < self.least_normal { subnormal } else { normal }.min(self.max_code);
        let negative = bits >> 31 != 0;
        let signed = if negative && (code != 0 || self.negative_zero) { code | self.sign } else { code };
        // An unsigned format has nothing below zero.
        (if negative && self.sign == 0 { 0 } else { signed }) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [MiniFloat; 6] =
        [MiniFloat::E2M1, MiniFloat::E2M3, MiniFloat::E3M2, MiniFloat::E4M3, MiniFloat::E5M2, MiniFloat::E5M3];

    /// Every value, every midpoint and their float neighbours, of both signs, and what lies outside.
    fn probes(format: MiniFloat) -> Vec<f32> {
        let grid: Vec<f32> = (0..=format.max_code()).map(|c| format.decode(c)).collect();
        let middles = grid.windows(2).map(|w| w[0] + (w[1] - w[0]) / 2.0);
        let outside = [1e-45, 1e-38, 1e-20, 1e20, f32::MAX];
        let points: Vec<f32> = grid.iter().copied().chain(middles).chain(outside).collect();
        let near = points.iter().flat_map(|p| [p.next_down(), *p, p.next_up()]).filter(|p| p.is_finite());
        near.flat_map(|p| [p, -p]).collect()
    }

    #[test]
    fn every_isa_equals_the_specification_on_every_boundary() {
        for isa in Isa::available() {
            for format in ALL {
                let values = probes(format);
                let mut codes = vec![0; values.len()];
                encode_minifloat(isa, format, Scaling::PowerOfTwo, &values, values.len(), &[1.0], &mut codes);
                for (value, code) in values.iter().zip(&codes) {
                    assert_eq!(*code, format.encode(*value), "{format:?} {} {value:e}", isa.name());
                }
            }
        }
    }

    #[test]
    fn scales_apply_per_group_and_quotients_are_rounded() {
        let values: Vec<f32> = (0..203).map(|i| (i as f32 * 0.37).cos() * i as f32).collect();
        let scales: Vec<f32> = (0..7).map(|g| 0.3 + g as f32).collect();
        for isa in Isa::available() {
            for arithmetic in [Arithmetic::F32, Arithmetic::Bf16, Arithmetic::F16] {
                let mut codes = vec![0; values.len()];
                encode_minifloat(isa, MiniFloat::E4M3, Scaling::Divide(arithmetic), &values, 32, &scales, &mut codes);
                for (i, code) in codes.iter().enumerate() {
                    let scaled = arithmetic.round(values[i] / scales[i / 32]);
                    assert_eq!(*code, MiniFloat::E4M3.encode(scaled));
                }
            }
        }
    }
}
