//! Block floating point with 8-bit mantissas: BFP16 (blocks of 8) and OCP MXINT8 (blocks of 32). Fake quantization only.

use super::shared_exponent::floor_log2;

/// Elements of a BFP16 block.
pub const BFP16_BLOCK: usize = 8;

/// The exponent of a BFP16 block's step: `floor(log2 amax) - 6`, one more where an element would leave -128..127; `None`
/// for a block without finite magnitudes, whose step is 2^-23.
pub fn bfp16_exponent(block: &[f32]) -> Option<i32> {
    let amax = finite_amax(block);
    if amax == 0.0 {
        return None;
    }
    let exponent = floor_log2(amax) - 6;
    let step = f64::from(exponent).exp2();
    let leaves = |v: &f32| !(-128.0..=127.0).contains(&(f64::from(*v) / step).round_ties_even());
    let overflow = block.iter().filter(|v| v.is_finite()).any(leaves);
    Some(exponent + i32::from(overflow))
}

/// Rounds a block of 8 in place: `y = clamp(rne(x / step), -128, 127) * step` with the step of [`bfp16_exponent`].
pub fn fake_quantize_bfp16(block: &mut [f32]) {
    let exponent = bfp16_exponent(block).unwrap_or(-23);
    round_block(block, exponent, -128.0);
}

/// The exponent of an MXINT8 block's step: the shared exponent, which the caller chooses by a
/// [`ScaleRule`](super::ScaleRule) with `emax = 0`, less six fraction bits.
pub fn mxint8_exponent(shared: i32) -> i32 {
    shared - 6
}

/// Rounds an MXINT8 block in place, symmetric: `y = clamp(rne(x / step), -127, 127) * step`.
pub fn fake_quantize_mxint8(block: &mut [f32], shared: i32) {
    round_block(block, mxint8_exponent(shared), -127.0);
}

fn round_block(block: &mut [f32], exponent: i32, least: f64) {
    let step = f64::from(exponent).exp2();
    for value in block.iter_mut().filter(|v| v.is_finite()) {
        *value = ((f64::from(*value) / step).round_ties_even().clamp(least, 127.0) * step) as f32;
    }
}

fn finite_amax(block: &[f32]) -> f32 {
    block.iter().filter(|v| v.is_finite()).fold(0.0f32, |m, v| m.max(v.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bfp16_step_doubles_where_the_largest_would_overflow() {
        let mut block = [0.0f32; 8];
        block[0] = 1.9999; // 127.99 steps of 2^-6 would round to 128
        assert_eq!(bfp16_exponent(&block), Some(-5));
        block[0] = -2.0; // exponent 1: -64 steps
        assert_eq!(bfp16_exponent(&block), Some(-5));
        assert_eq!(bfp16_exponent(&[0.0; 8]), None);
    }

    #[test]
    fn values_round_to_multiples_of_the_step() {
        let mut block = [1.0, 0.01, -0.01, 0.5, 0.0, 0.0, 0.0, 0.0];
        fake_quantize_bfp16(&mut block);
        assert_eq!(block[..4], [1.0, 0.015625, -0.015625, 0.5]);
        let mut block = [2.0f32, -2.0, 0.3, f32::NAN];
        fake_quantize_mxint8(&mut block, 0);
        assert_eq!(block[..3], [127.0 / 64.0, -127.0 / 64.0, 19.0 / 64.0]);
    }
}
