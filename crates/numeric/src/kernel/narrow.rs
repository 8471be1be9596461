//! From `f32` to bfloat16 as it is stored. Not codes, which have scales.

use crate::arithmetic::round_to_bf16;
use crate::simd::{Isa, Loop, dispatch};

/// Rounds to bfloat16, ties to even, in little-endian bytes; elements beyond the shorter of the two are left.
pub fn narrow_to_bf16(isa: Isa, values: &[f32], out: &mut [[u8; 2]]) {
    dispatch(isa, Narrow { values, out });
}

struct Narrow<'a> {
    values: &'a [f32],
    out: &'a mut [[u8; 2]],
}

impl Loop for Narrow<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (out, value) in self.out.iter_mut().zip(self.values) {
            *out = ((round_to_bf16(*value).to_bits() >> 16) as u16).to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Source, widen};

    #[test]
    fn what_is_narrowed_is_the_rounded_number_on_every_isa() {
        let values: Vec<f32> = (0..1000_u32).map(|i| f32::from_bits(i.wrapping_mul(4_294_007))).collect();
        for isa in Isa::available() {
            let (mut bytes, mut back) = (vec![[0; 2]; 1000], vec![0.0; 1000]);
            narrow_to_bf16(isa, &values, &mut bytes);
            widen(isa, Source::Bf16, bytes.as_flattened(), &mut back);
            let same = |(value, back): (&f32, &f32)| round_to_bf16(*value).to_bits() == back.to_bits() || back.is_nan();
            assert!(values.iter().zip(&back).all(same), "{}", isa.name());
        }
    }
}
