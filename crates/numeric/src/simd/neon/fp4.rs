//! MXFP4 codes of bfloat16 with NEON: with a scale that is a power of two, an element's code follows from its sixteen bits, in half
//! as many vectors. Not other formats, whose tables would not fit four vectors.

use super::{BLOCK, Groups, sign_bytes, store, words};
use crate::element_loop::{Element, ElementLoop, FloatCodes, Scaling, StoredFloat};
use crate::format::{Encoder, MiniFloat};
use std::arch::aarch64::*;

/// Bits of a bfloat16 below those that look a code up; whether one of them is set is looked up, too.
const BELOW: u32 = 5;
/// Entries of the table for elements with none of the bits below; as many follow for those with some.
const ENTRIES: u16 = 32;
/// The exponent at which the table begins, biased as in a bfloat16: that of 1/8, which is code 0 as all below it.
const FIRST: u16 = 127 - 3;

/// Whether the loop is one for this file: bfloat16 at scales that are powers of two, none so small that an element without an
/// implicit one could have a code other than 0.
pub(super) fn takes<E: Element>(body: &FloatCodes<'_>) -> bool {
    let brain = E::FLOAT == StoredFloat::Brain;
    let fits =
        |scale: &f32| scale.to_bits() & 0x007F_FFFF == 0 && (2.0f32.powi(-123)..=2.0f32.powi(127)).contains(scale);
    brain && body.format == MiniFloat::E2M1 && body.scaling == Scaling::PowerOfTwo && body.scales.iter().all(fits)
}

#[target_feature(enable = "neon")]
pub(super) fn codes<E: Element>(body: FloatCodes<'_>, elements: &[E::Stored]) {
    let FloatCodes { format, scaling, group, scales, codes } = body;
    let table = table(format);
    let blocks = |index: usize, elements: &[[E::Stored; BLOCK]], codes: &mut [[u8; BLOCK]]| {
        // The exponent of the scale and that of the table's beginning go off at once; what is below it becomes its beginning.
        let exponent = (scales[index].to_bits() >> 23) as u16;
        let begin = vdupq_n_u16((FIRST + exponent - 127) << 7);
        for (block, codes) in elements.iter().zip(codes) {
            store(look_up(words::<E>(block), sign_bytes::<E>(block), begin, table), codes);
        }
    };
    let rest = |index: usize, elements: &[E::Stored], codes: &mut [u8]| {
        FloatCodes { format, scaling, group, scales: &scales[index..=index], codes }.run::<E>(elements);
    };
    Groups::<E> { elements, codes, group }.each(blocks, rest);
}

/// The codes of magnitudes by the upper bits of their bfloat16, without and with bits below.
#[inline]
#[target_feature(enable = "neon")]
fn table(format: MiniFloat) -> uint8x16x4_t {
    let encoder = Encoder::new(format);
    let codes: [u8; 2 * ENTRIES as usize] = std::array::from_fn(|entry| {
        let (below, entry) = (entry as u32 / u32::from(ENTRIES), entry as u32 % u32::from(ENTRIES));
        let word = (u32::from(FIRST) << 7) + (entry << BELOW) + below;
        encoder.encode(f32::from_bits(word << 16))
    });
    // SAFETY: the array has the 64 bytes that are read.
    unsafe { vld1q_u8_x4(codes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn look_up(words: [uint16x8_t; 2], signs: uint8x16_t, begin: uint16x8_t, table: uint8x16x4_t) -> uint8x16_t {
    let last = vdupq_n_u16((ENTRIES << BELOW) - 1);
    let [low, high] = words.map(|words| {
        let magnitude = vandq_u16(words, vdupq_n_u16(0x7FFF));
        vminq_u16(vqsubq_u16(magnitude, begin), last)
    });
    let entry = vshrn_high_n_u16::<{ BELOW as i32 }>(vshrn_n_u16::<{ BELOW as i32 }>(low), high);
    let low_bytes = vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
    let below = vtstq_u8(low_bytes, vdupq_n_u8((1 << BELOW) - 1));
    let entry = vorrq_u8(entry, vandq_u8(below, vdupq_n_u8(ENTRIES as u8)));
    let codes = vqtbl4q_u8(table, entry);
    // fp4 loses the sign of a zero.
    let negative = vandq_u8(vshrq_n_u8::<4>(signs), vdupq_n_u8(8));
    vorrq_u8(codes, vandq_u8(negative, vtstq_u8(codes, codes)))
}
