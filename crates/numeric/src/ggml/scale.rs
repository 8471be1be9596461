//! Scales as blocks store them: binary16, saturated, and its bits. Not how scales are found.

use crate::arithmetic::round_to_f16;

/// The largest finite binary16.
pub(super) const F16_MAX: f32 = 65_504.0;

/// The bits of the nearest finite binary16, ties to even: larger values saturate, NaN becomes 0.
#[inline(always)]
pub(super) fn f16_bits(value: f32) -> u16 {
    let rounded = round_to_f16(if value.is_nan() { 0.0 } else { value.clamp(-F16_MAX, F16_MAX) });
    let magnitude = rounded.to_bits() & 0x7FFF_FFFF;
    // Multiples of 2^-24 below 2^-14 are subnormal: their bits are the multiple.
    let subnormal = (rounded.abs() * 16_777_216.0) as u32;
    let normal = (magnitude >> 13).wrapping_sub(112 << 10);
    let bits = if magnitude < 0x3880_0000 { subnormal } else { normal };
    (bits | (rounded.to_bits() >> 16 & 0x8000)) as u16
}

/// `1 / scale`, or 0 where that is not finite, so that zeros and scales too small to divide by give the code of zero.
#[inline(always)]
pub(super) fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// 1.5 * 2^23: adding it to a number of magnitude below 2^22 rounds to an integer, half to even, which is then in the
/// low bits of the mantissa. Unlike a cast, that is vectors on x86-64.
pub(super) const TO_INTEGER: f32 = 12_582_912.0;

/// The largest magnitude that the functions below round; larger values saturate.
const LARGEST: f32 = 65_536.0;

/// Whether the architecture casts with any rounding in one instruction.
const HAS_ROUNDING_CASTS: bool = cfg!(target_arch = "aarch64");

/// The value within the largest magnitudes.
#[inline(always)]
fn saturated(value: f32) -> f32 {
    // Comparisons, as `max` and `min` would look for NaN.
    let value = if value > -LARGEST { value } else { -LARGEST };
    if value < LARGEST { value } else { LARGEST }
}

/// The nearest integer, half to even, and how much it is less than `value`.
#[inline(always)]
fn round(value: f32) -> (i32, f32) {
    let value = saturated(value);
    let shifted = value + TO_INTEGER;
    (shifted.to_bits() as i32 - TO_INTEGER.to_bits() as i32, value - (shifted - TO_INTEGER))
}

/// The greatest integer that is not above `value`.
#[inline(always)]
pub(super) fn floor(value: f32) -> i32 {
    if HAS_ROUNDING_CASTS {
        return saturated(value).floor() as i32;
    }
    let (nearest, rest) = round(value);
    nearest - i32::from(rest < 0.0)
}

/// The nearest integer, halves away from zero, as C's `roundf`.
#[inline(always)]
pub(super) fn round_half_away(value: f32) -> i32 {
    if HAS_ROUNDING_CASTS {
        return saturated(value).round() as i32;
    }
    let (nearest, rest) = round(value);
    nearest + i32::from((rest == 0.5) & (value > 0.0)) - i32::from((rest == -0.5) & (value < 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_bits_match_the_half_crate_for_finite_values() {
        let mut bits = 0u32;
        for _ in 0..1_000_000 {
            bits = bits.wrapping_add(2_654_435_769);
            let value = f32::from_bits(bits);
            let theirs = half::f16::from_f32(value);
            if theirs.is_finite() {
                assert_eq!(f16_bits(value), theirs.to_bits(), "{value:e}");
            }
        }
    }

    #[test]
    fn non_finite_f16_saturates() {
        assert_eq!([1e9, f32::INFINITY, 65_520.0].map(f16_bits), [0x7BFF; 3]);
        assert_eq!([-1e9, f32::NEG_INFINITY].map(f16_bits), [0xFBFF; 2]);
        assert_eq!([f32::NAN, 0.0, -0.0].map(f16_bits), [0, 0, 0x8000]);
    }

    #[test]
    fn inverse_of_zero_is_zero() {
        assert_eq!([0.0, -0.0, 1e-40, f32::INFINITY, 4.0].map(inverse), [0.0, 0.0, 0.0, 0.0, 0.25]);
    }

    #[test]
    fn rounding_matches_the_standard_library() {
        for step in -4096..4096 {
            let exact = step as f32 / 16.0;
            for value in [exact, exact.next_up(), exact.next_down()] {
                assert_eq!(floor(value), value.floor() as i32, "{value:e}");
                assert_eq!(round_half_away(value), value.round() as i32, "{value:e}");
            }
        }
        assert_eq!([f32::MAX, -f32::MAX].map(floor), [65_536, -65_536]);
    }
}
