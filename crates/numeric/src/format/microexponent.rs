//! MX6 and MX9 of Microsoft's shared microexponents (arXiv 2302.08007): sixteen elements share an exponent, each pair a
//! one-bit shift. Fake quantization only: no loader defines bytes for them. Not OCP MX, which is another format.

use super::minifloat::pow2;

/// A two-level block format: block of 16 with an 8-bit exponent, pairs with a 1-bit shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MicroExponent {
    element_bits: u8,
}

impl MicroExponent {
    /// Mantissas of 4 bits and a sign: six bits an element on average.
    pub const MX6: MicroExponent = MicroExponent { element_bits: 5 };
    /// Mantissas of 7 bits and a sign: nine bits an element on average.
    pub const MX9: MicroExponent = MicroExponent { element_bits: 8 };
    /// Elements that share an exponent.
    pub const BLOCK: usize = 16;

    /// Bits of an element with its sign, without its shares of exponent and shift.
    pub const fn element_bits(self) -> u32 {
        self.element_bits as u32
    }

    /// Rounds a block in place.
    ///
    /// With `E` the exponent of the block's largest magnitude and `shift` 1 where both elements of a pair have exponents
    /// below `E`: `step = 2^(E - shift - element_bits + 2)`, `y = clamp(rne(x / step), +-(2^(element_bits - 1) - 1)) * step`.
    /// Magnitudes below `smallest_normal` (that of the source's type) count as zero; NaN and infinities are passed through.
    pub fn fake_quantize(self, block: &mut [f32], smallest_normal: f32) {
        for value in block.iter_mut() {
            *value = if value.abs() < smallest_normal { 0.0 } else { *value };
        }
        let largest = block.iter().filter(|v| v.is_finite()).fold(0.0f32, |m, v| m.max(v.abs()));
        let shared = exponent(largest);
        for pair in block.chunks_mut(2) {
            let shift = i32::from(pair.iter().all(|v| v.is_finite() && exponent(*v) < shared));
            let step_exponent = shared - shift - self.element_bits as i32 + 2;
            pair.iter_mut().for_each(|v| *v = self.round(*v, step_exponent));
        }
    }

    fn round(self, value: f32, step_exponent: i32) -> f32 {
        if !value.is_finite() {
            return value;
        }
        let limit = f32::from((1u16 << (self.element_bits - 1)) - 1);
        // In two factors, since 2^-step may not be a normal number.
        let half = step_exponent.div_euclid(2);
        let scaled = value / pow2(half) / pow2(step_exponent - half);
        scaled.round_ties_even().clamp(-limit, limit) * pow2(half) * pow2(step_exponent - half)
    }
}

/// The unbiased exponent field: -127 for zeros and subnormals.
fn exponent(value: f32) -> i32 {
    ((value.to_bits() >> 23) & 0xFF) as i32 - 127
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pair_gets_a_finer_step() {
        let mut block = vec![0.0f32; 16];
        block[0] = 1.0; // shared exponent 0: step 2^-3, and 2^-4 where a pair is smaller
        block[1] = 0.07;
        block[2] = 0.07;
        block[3] = 0.4;
        MicroExponent::MX6.fake_quantize(&mut block, f32::MIN_POSITIVE);
        assert_eq!(block[..4], [1.0, 0.125, 0.0625, 0.375]);
    }

    #[test]
    fn mx9_saturates_symmetrically() {
        let mut block = [-1.999f32; 16];
        MicroExponent::MX9.fake_quantize(&mut block, f32::MIN_POSITIVE);
        assert_eq!(block[0], -127.0 / 64.0);
    }

    #[test]
    fn nan_passes_and_does_not_set_the_exponent() {
        let mut block = [1.0f32; 16];
        block[0] = f32::NAN;
        block[2] = f32::INFINITY;
        MicroExponent::MX6.fake_quantize(&mut block, f32::MIN_POSITIVE);
        assert!(block[0].is_nan() && block[2].is_infinite() && block[4] == 1.0);
    }
}
