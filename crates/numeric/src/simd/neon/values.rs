//! Values of codes of small floats with NEON: a code becomes a binary16 with the same fields, whose exponent is off by a constant, which the
//! scale mends.

use super::{BLOCK, Neon};
use crate::format::{MiniFloat, pow2};
use crate::kernel::CodeDecoder;
use std::arch::aarch64::*;

/// A decoder of a signed format, for whole blocks by hand.
#[derive(Clone, Copy)]
pub(crate) struct BlockDecoder<D> {
    fields: Fields,
    /// Of codes that are not finite or left over, and of all where the scale is too large.
    decoder: D,
}

/// What turns codes into binary16.
#[derive(Clone, Copy)]
struct Fields {
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
    /// The decoder of a format, if it has a sign, by one that decodes single codes.
    pub(crate) fn decoder<D: CodeDecoder>(self, format: MiniFloat, decoder: D) -> Option<BlockDecoder<D>> {
        let exponent_bits = format.bits() - 1 - format.mantissa_bits();
        let above = 8 - format.bits();
        let fields = Fields {
            above: above as i8,
            shorter: 5 - exponent_bits as i16,
            mask: 0x8000 | ((1 << (10 + exponent_bits)) - 1),
            special_from: format.special_from().map_or(u8::MAX, |code| code << above),
            factor: pow2(15 - format.bias()),
        };
        format.is_signed().then_some(BlockDecoder { fields, decoder })
    }
}

impl<D: CodeDecoder> CodeDecoder for BlockDecoder<D> {
    #[inline(always)]
    fn decode(self, code: u8, zero_point: f32) -> f32 {
        self.decoder.decode(code, zero_point)
    }

    #[inline(always)]
    fn scaled(self, codes: &[u8], zero_point: f32, scale: f32, out: &mut [f32]) {
        // The factor is a power of two, so that the product is exact.
        let factor = scale * self.fields.factor;
        if !factor.is_finite() {
            return self.decoder.scaled(codes, zero_point, scale, out);
        }
        let (blocks, tail) = codes.as_chunks::<BLOCK>();
        let (outs, tail_out) = out.as_chunks_mut::<BLOCK>();
        for (block, out) in blocks.iter().zip(outs) {
            // SAFETY: NEON is part of the architecture.
            if !unsafe { scaled_block(self.fields, block, factor, out) } {
                self.decoder.scaled(block, zero_point, scale, out);
            }
        }
        self.decoder.scaled(tail, zero_point, scale, tail_out);
    }
}

/// Returns whether all are finite, without which nothing was written.
#[inline]
#[target_feature(enable = "neon")]
fn scaled_block(fields: Fields, block: &[u8; BLOCK], factor: f32, out: &mut [f32; BLOCK]) -> bool {
    // SAFETY: the block has the 16 bytes that are read.
    let codes = vshlq_u8(unsafe { vld1q_u8(block.as_ptr()) }, vdupq_n_s8(fields.above));
    if fields.special_from < u8::MAX && vmaxvq_u8(vandq_u8(codes, vdupq_n_u8(0x7F))) >= fields.special_from {
        return false;
    }
    let zero = vdupq_n_u8(0);
    let words = [vzip1q_u8(zero, codes), vzip2q_u8(zero, codes)];
    for (words, out) in words.into_iter().zip(out.as_chunks_mut::<8>().0) {
        // The sign stays, and fills what the exponent is shorter.
        let moved = vshlq_s16(vreinterpretq_s16_u8(words), vdupq_n_s16(-fields.shorter));
        let halves = vandq_u16(vreinterpretq_u16_s16(moved), vdupq_n_u16(fields.mask));
        let halves = vreinterpretq_f16_u16(halves);
        // SAFETY: there are four elements from each of these on.
        unsafe {
            vst1q_f32(out.as_mut_ptr(), vmulq_n_f32(vcvt_f32_f16(vget_low_f16(halves)), factor));
            vst1q_f32(out.as_mut_ptr().add(4), vmulq_n_f32(vcvt_high_f32_f16(halves), factor));
        }
    }
    true
}
