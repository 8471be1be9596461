//! The precision in which scale arithmetic is done, and rounding of `f32` onto `f16` and `bf16`. Not the element
//! formats that weights are quantized to: those are in [`crate::format`].

use serde::{Deserialize, Serialize};

/// The precision to which every intermediate result of scale arithmetic is rounded.
///
/// A PyTorch tool that computes scales on a bf16 model rounds after every operation. To obtain the same bytes we do the
/// same; with [`ComputeDType::F32`] nothing is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeDType {
    /// No rounding beyond `f32` itself.
    F32,
    /// Rounded to IEEE binary16 after every operation.
    F16,
    /// Rounded to bfloat16 after every operation.
    Bf16,
}

impl ComputeDType {
    /// Rounds `value` to this precision, ties to even.
    #[inline(always)]
    pub fn round(self, value: f32) -> f32 {
        match self {
            ComputeDType::F32 => value,
            ComputeDType::F16 => round_to_f16(value),
            ComputeDType::Bf16 => round_to_bf16(value),
        }
    }
}

/// Rounds a number to bfloat16, ties to even; a result past the largest finite bfloat16 becomes infinite. NaN stays NaN.
#[inline(always)]
pub fn round_to_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) & 0xFFFF_0000;
    f32::from_bits(if value.is_nan() { bits } else { rounded })
}

/// Rounds a number to binary16, ties to even, subnormals included; past 65520 it becomes infinite. NaN stays NaN.
#[inline(always)]
pub fn round_to_f16(value: f32) -> f32 {
    // Adding and subtracting 1.5 * 2^(23 + step) rounds to multiples of 2^step; the step follows the exponent, and stops
    // at that of the subnormals (2^-24).
    let magnitude = value.abs().min(131_072.0);
    let exponent = (magnitude.to_bits() >> 23).max(127 - 14);
    let shift = f32::from_bits(((exponent + 13) << 23) | 0x0040_0000);
    let rounded = (magnitude + shift) - shift;
    let finite_or_infinite = if rounded > 65_504.0 { f32::INFINITY } else { rounded };
    if value.is_nan() { value } else { finite_or_infinite.copysign(value) }
}

/// The binary16 bit pattern of a number, ties to even, subnormals included; past 65520 it is infinity. NaN keeps the upper bits
/// of its payload and is quiet.
#[inline(always)]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    // With the exponent 112 less the bits stand in their places, those of subnormals too; infinity would not move.
    let finite = (round_to_f16(value).abs() * f32::from_bits((127 - 112) << 23)).to_bits() >> 13;
    let payload = 0x7E00 | (bits >> 13 & 0x3FF);
    let magnitude = if value.is_nan() { payload } else { finite.min(0x7C00) };
    (magnitude | bits >> 16 & 0x8000) as u16
}

/// Widens a bfloat16 bit pattern. Exact.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Widens a binary16 bit pattern. Exact, subnormals and infinities included.
#[inline(always)]
pub fn f16_to_f32(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7FFF);
    // Shifted into place the exponent is 112 too small; the product mends it, for subnormals as well.
    let finite = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
    let special = f32::from_bits((magnitude << 13) | 0x7F80_0000);
    let widened = if magnitude >= 0x7C00 { special } else { finite };
    f32::from_bits(widened.to_bits() | (u32::from(bits & 0x8000) << 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(ours: f32, theirs: f32) -> bool {
        ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan())
    }

    #[test]
    fn widening_matches_the_half_crate_for_every_pattern() {
        for bits in 0..=u16::MAX {
            assert!(same(f16_to_f32(bits), half::f16::from_bits(bits).to_f32()), "f16 {bits:#06x}");
            assert!(same(bf16_to_f32(bits), half::bf16::from_bits(bits).to_f32()), "bf16 {bits:#06x}");
        }
    }

    #[test]
    fn rounding_matches_the_half_crate() {
        // A stride that is coprime to 2^32 walks through all exponents, signs and mantissa tails.
        let mut bits = 0u32;
        for _ in 0..2_000_000 {
            bits = bits.wrapping_add(2_654_435_769);
            let value = f32::from_bits(bits);
            assert!(same(round_to_f16(value), half::f16::from_f32(value).to_f32()), "f16 {value:e}");
            assert!(same(round_to_bf16(value), half::bf16::from_f32(value).to_f32()), "bf16 {value:e}");
        }
    }

    #[test]
    fn ties_at_every_f16_boundary_go_to_even() {
        for bits in 0..0x7C00u16 {
            let low = f16_to_f32(bits);
            let high = if bits == 0x7BFF { 65_536.0 } else { f16_to_f32(bits + 1) };
            let middle = low + (high - low) / 2.0;
            assert!(same(round_to_f16(middle), half::f16::from_f32(middle).to_f32()), "{middle:e}");
        }
    }
}
