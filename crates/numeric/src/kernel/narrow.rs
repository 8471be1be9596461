//! From `f32` to the 16-bit floats as they are stored. Not codes, which have scales.

use crate::arithmetic::{f32_to_f16, round_to_bf16};
use crate::simd::{Isa, Loop, dispatch};

/// Rounds to bfloat16, ties to even, in little-endian bytes; elements beyond the shorter of the two are left.
pub fn narrow_to_bf16(isa: Isa, values: &[f32], out: &mut [[u8; 2]]) {
    dispatch(isa, Narrow { values, out, bits: |value| (round_to_bf16(value).to_bits() >> 16) as u16 });
}

/// The same to binary16; past 65520 it is infinity.
pub fn narrow_to_f16(isa: Isa, values: &[f32], out: &mut [[u8; 2]]) {
    #[cfg(target_arch = "aarch64")]
    let (values, out) = match isa.neon() {
        Some(neon) => {
            let done = neon.narrow_to_f16(values, out);
            (&values[done..], &mut out[done..])
        }
        None => (values, out),
    };
    dispatch(isa, Narrow { values, out, bits: f32_to_f16 });
}

struct Narrow<'a, F> {
    values: &'a [f32],
    out: &'a mut [[u8; 2]],
    bits: F,
}

impl<F: Fn(f32) -> u16> Loop for Narrow<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (out, value) in self.out.iter_mut().zip(self.values) {
            *out = (self.bits)(*value).to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{FloatDType, widen};

    #[test]
    fn narrowing_to_bf16_rounds_on_every_isa() {
        let values: Vec<f32> = (0..1000_u32).map(|i| f32::from_bits(i.wrapping_mul(4_294_007))).collect();
        for isa in Isa::available() {
            let (mut bytes, mut back) = (vec![[0; 2]; 1000], vec![0.0; 1000]);
            narrow_to_bf16(isa, &values, &mut bytes);
            widen(isa, FloatDType::Bf16, bytes.as_flattened(), &mut back);
            let same = |(value, back): (&f32, &f32)| round_to_bf16(*value).to_bits() == back.to_bits() || back.is_nan();
            assert!(values.iter().zip(&back).all(same), "{}", isa.name());
        }
    }

    #[test]
    fn narrowing_covers_every_f16_and_midpoint() {
        // Every number of binary16, what lies half way to the next, and the f32 on either side of that.
        let half_ways = (0..=u16::MAX).map(|bits| half::f16::from_bits(bits).to_f32().to_bits());
        let values = half_ways.flat_map(|bits| [0, 0xFFF, 0x1000, 0x1001].map(|more| f32::from_bits(bits | more)));
        let values: Vec<f32> = values.chain([70_000.0, -1e30, 1e-30, f32::MIN_POSITIVE, 65_519.9, 65_520.0]).collect();
        for isa in Isa::available() {
            let mut bytes = vec![[0; 2]; values.len()];
            narrow_to_f16(isa, &values, &mut bytes);
            for (value, bytes) in values.iter().zip(&bytes) {
                let expected = half::f16::from_f32(*value);
                assert_eq!(u16::from_le_bytes(*bytes), expected.to_bits(), "{value:e} {}", isa.name());
            }
        }
    }
}
