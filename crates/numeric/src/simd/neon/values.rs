//! Values of codes of small floats with NEON: a code becomes a binary16 with the same fields, whose exponent is off by a constant, which the
//! scale mends.

use super::{BLOCK, Neon};
use crate::format::{MiniFloat, pow2};
use std::arch::aarch64::*;

/// A decoder of a signed format in whole blocks: what turns codes into binary16.
#[derive(Clone, Copy)]
pub(crate) struct BlockDecoder {
    /// Bits of the byte above those of the code.
    above: i8,
    /// By how many bits the exponent is shorter than that of binary16.
    shorter: i16,
    /// Sign, exponent and mantissa where they are in binary16.
    mask: u16,
    /// Codes from here on are not finite; in bytes with the code at the top and without its sign.
    special_from: u8,
    /// The factor from the binary16 to the value.
    factor: f32,
}

impl Neon {
    /// The decoder of a format, if it has a sign.
    pub(crate) fn decoder(self, format: MiniFloat) -> Option<BlockDecoder> {
        let exponent_bits = format.bits() - 1 - format.mantissa_bits();
        let above = 8 - format.bits();
        format.is_signed().then(|| BlockDecoder {
            above: above as i8,
            shorter: 5 - exponent_bits as i16,
            mask: 0x8000 | ((1 << (10 + exponent_bits)) - 1),
            special_from: format.special_from().map_or(u8::MAX, |code| code << above),
            factor: pow2(15 - format.bias()),
        })
    }
}

impl BlockDecoder {
    /// `value * scale` of each code; `decode` gives the values of codes that are not finite or left over, and of all where the scale is
    /// too large.
    pub(crate) fn scaled(self, codes: &[u8], scale: f32, out: &mut [f32], decode: impl Fn(u8) -> f32) {
        let each = |codes: &[u8], out: &mut [f32]| {
            for (out, code) in out.iter_mut().zip(codes) {
                *out = decode(*code) * scale;
            }
        };
        // The factor is a power of two, so that the product is exact.
        let factor = scale * self.factor;
        if !factor.is_finite() {
            return each(codes, out);
        }
        let (blocks, tail) = codes.as_chunks::<BLOCK>();
        let (outs, tail_out) = out.as_chunks_mut::<BLOCK>();
        for (block, out) in blocks.iter().zip(outs) {
            // SAFETY: NEON is part of the architecture.
            if !unsafe { scaled_block(self, block, factor, out) } {
                each(block, out);
            }
        }
        each(tail, tail_out);
    }
}

/// Returns whether all are finite, without which nothing was written.
#[inline]
#[target_feature(enable = "neon")]
fn scaled_block(decoder: BlockDecoder, block: &[u8; BLOCK], factor: f32, out: &mut [f32; BLOCK]) -> bool {
    // SAFETY: the block has the 16 bytes that are read.
    let codes = vshlq_u8(unsafe { vld1q_u8(block.as_ptr()) }, vdupq_n_s8(decoder.above));
    if decoder.special_from < u8::MAX && vmaxvq_u8(vandq_u8(codes, vdupq_n_u8(0x7F))) >= decoder.special_from {
        return false;
    }
    let zero = vdupq_n_u8(0);
    let words = [vzip1q_u8(zero, codes), vzip2q_u8(zero, codes)];
    for (words, out) in words.into_iter().zip(out.as_chunks_mut::<8>().0) {
        // The sign stays, and fills what the exponent is shorter.
        let moved = vshlq_s16(vreinterpretq_s16_u8(words), vdupq_n_s16(-decoder.shorter));
        let halves = vandq_u16(vreinterpretq_u16_s16(moved), vdupq_n_u16(decoder.mask));
        let halves = vreinterpretq_f16_u16(halves);
        // SAFETY: there are four elements from each of these on.
        unsafe {
            vst1q_f32(out.as_mut_ptr(), vmulq_n_f32(vcvt_f32_f16(vget_low_f16(halves)), factor));
            vst1q_f32(out.as_mut_ptr().add(4), vmulq_n_f32(vcvt_high_f32_f16(halves), factor));
        }
    }
    true
}
