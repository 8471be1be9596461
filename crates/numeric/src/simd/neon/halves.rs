//! Conversions of binary16 with the instructions for them, which every aarch64 processor has.

use super::{BLOCK, Neon};
use crate::arithmetic::f16_to_f32;
use std::arch::aarch64::*;

/// Elements whose NaN are looked for at a time.
const RUN: usize = 2 * BLOCK;

impl Neon {
    /// Exactly [`f16_to_f32`] of each, up to the shorter of the two. The instruction makes signalling NaN quiet, and is not used
    /// where one is near.
    pub(crate) fn widen_f16(self, stored: &[[u8; 2]], out: &mut [f32]) {
        let (runs, _) = stored.as_chunks::<RUN>();
        let (outs, _) = out.as_chunks_mut::<RUN>();
        let done = RUN * runs.len().min(outs.len());
        for (run, out) in runs.iter().zip(outs) {
            // SAFETY: NEON is part of the architecture.
            if !unsafe { widen_run(run, out) } {
                widen_each(run, out);
            }
        }
        widen_each(&stored[done..], &mut out[done..]);
    }

    /// Exactly [`f32_to_f16`](crate::arithmetic::f32_to_f16) of each in whole blocks, of which the number of elements is returned.
    pub(crate) fn narrow_to_f16(self, values: &[f32], out: &mut [[u8; 2]]) -> usize {
        narrow_blocks(values, out, |values| values)
    }

    /// The same of values saturated at the largest finite number, zero for NaN.
    pub(crate) fn narrow_to_finite_f16(self, values: &[f32], out: &mut [[u8; 2]]) -> usize {
        let largest = 65_504.0;
        narrow_blocks(values, out, |values| {
            // SAFETY: NEON is part of the architecture.
            unsafe {
                let numbers = vbslq_f32(vceqq_f32(values, values), values, vdupq_n_f32(0.0));
                vminnmq_f32(vmaxnmq_f32(numbers, vdupq_n_f32(-largest)), vdupq_n_f32(largest))
            }
        })
    }
}

fn widen_each(stored: &[[u8; 2]], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(stored) {
        *out = f16_to_f32(u16::from_le_bytes(*bytes));
    }
}

/// Returns whether there is no NaN, without which nothing was written.
#[inline]
#[target_feature(enable = "neon")]
fn widen_run(run: &[[u8; 2]; RUN], out: &mut [f32; RUN]) -> bool {
    let bytes = run.as_ptr().cast::<u8>();
    // SAFETY: the run has 64 bytes, 16 from each of these on.
    let words = unsafe { [0, 16, 32, 48].map(|at| vreinterpretq_u16_u8(vld1q_u8(bytes.add(at)))) };
    let [a, b, c, d] = words.map(|words| vandq_u16(words, vdupq_n_u16(0x7FFF)));
    if vmaxvq_u16(vmaxq_u16(vmaxq_u16(a, b), vmaxq_u16(c, d))) > 0x7C00 {
        return false;
    }
    for (words, out) in words.into_iter().zip(out.as_chunks_mut::<8>().0) {
        let halves = vreinterpretq_f16_u16(words);
        // SAFETY: there are four elements from each of these on.
        unsafe {
            vst1q_f32(out.as_mut_ptr(), vcvt_f32_f16(vget_low_f16(halves)));
            vst1q_f32(out.as_mut_ptr().add(4), vcvt_high_f32_f16(halves));
        }
    }
    true
}

#[inline(always)]
fn narrow_blocks(values: &[f32], out: &mut [[u8; 2]], prepared: impl Fn(float32x4_t) -> float32x4_t) -> usize {
    let (blocks, _) = values.as_chunks::<8>();
    let (outs, _) = out.as_chunks_mut::<8>();
    for (block, out) in blocks.iter().zip(&mut *outs) {
        // SAFETY: NEON is part of the architecture; there are four numbers from each of these addresses on, and 16 bytes of `out`.
        unsafe {
            let low = prepared(vld1q_f32(block.as_ptr()));
            let high = prepared(vld1q_f32(block.as_ptr().add(4)));
            let halves = vcvt_high_f16_f32(vcvt_f16_f32(low), high);
            vst1q_u8(out.as_mut_ptr().cast(), vreinterpretq_u8_f16(halves));
        }
    }
    8 * blocks.len().min(outs.len())
}
