//! Integer codes with NEON.

use super::{BLOCK, Groups, low_bytes, store, widened};
use crate::element_loop::{AffineStep, Element, ElementLoop, IntCodes};
use std::arch::aarch64::*;

/// 1.5 * 2^23: adding it to a number of magnitude below 2^22 rounds to an integer, half to even, whose lowest byte is that of the sum.
const TO_INTEGER: f32 = 12_582_912.0;

#[target_feature(enable = "neon")]
pub(super) fn codes<E: Element>(body: IntCodes<'_>, elements: &[E::Stored]) {
    let IntCodes { group, steps, min, max, codes } = body;
    let blocks = |index: usize, elements: &[[E::Stored; BLOCK]], codes: &mut [[u8; BLOCK]]| {
        // Bounds are integers, so clamping before rounding gives what clamping after would.
        let AffineStep { inverse_scale, zero_point } = steps[index];
        let low = vdupq_n_f32((min - zero_point) as f32);
        let high = vdupq_n_f32((max - zero_point) as f32);
        let zero = vdupq_n_u8(zero_point as u8);
        for (block, codes) in elements.iter().zip(codes) {
            let rounded = widened::<E>(block).map(|values| {
                let scaled = vmulq_n_f32(values, inverse_scale);
                let clamped = vminnmq_f32(vmaxnmq_f32(scaled, low), high);
                vreinterpretq_u32_f32(vaddq_f32(clamped, vdupq_n_f32(TO_INTEGER)))
            });
            store(vaddq_u8(low_bytes(rounded), zero), codes);
        }
    };
    let rest = |index: usize, elements: &[E::Stored], codes: &mut [u8]| {
        IntCodes { group, steps: &steps[index..=index], min, max, codes }.run::<E>(elements);
    };
    Groups::<E> { elements, codes, group }.each(blocks, rest);
}
