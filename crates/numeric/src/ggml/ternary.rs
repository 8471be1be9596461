//! TQ1_0 and TQ2_0: 256 elements of -1, 0 and 1 with one scale, for models that were trained so.
//!
//! | type | bytes | fields |
//! |---|---|---|
//! | TQ1_0 | 54 | 48 bytes of five elements each; four bytes of four elements each; binary16 `d` |
//! | TQ2_0 | 66 | 64 bytes as in Q2_K; binary16 `d` |
//!
//! `w = d * (q - 1)`, `d = amax`, `q = round(w / d) + 1` with halves away from zero, `d` not yet rounded: llama.cpp's
//! `quantize_row_tq1_0_ref` and `quantize_row_tq2_0_ref`, but that a scale beyond binary16 saturates.
//!
//! In TQ1_0, byte `j` of the first 32 has elements `j + 32 n`, `n` from 0 to 4; byte `j` of the next 16 elements
//! `160 + j + 16 n`; byte `j` of the last four elements `240 + j + 4 n`, `n` from 0 to 3, and a 0. With `v` the number in
//! base 3 of these digits, first to last, the byte is `ceil(256 v / 243)`: digit `n` is the whole part of three times
//! the fraction that is left when the byte is taken as a fraction of 256 and multiplied by `3^n`.

use super::block::{Decode, Encode, Layout, Rows, decode_blocks, encode_blocks};
use super::coded::CodedBlock;
use super::planes::{pair_of_bits, put_pairs_of_bits};
use super::scale::{F16_MAX, f16_bits, inverse, round_half_away};
use super::tile::largest_magnitude;
use crate::arithmetic::f16_to_f32;
use crate::simd::Isa;
use std::ops::Range;

pub(super) struct Tq1_0;

pub(super) struct Tq2_0;

impl Layout for Tq1_0 {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 54;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        encode_blocks::<Self, 256, 54>(isa, rows.values, out);
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Self, 256, 54>(isa, bytes, out);
    }
}

impl Layout for Tq2_0 {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 66;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        encode_blocks::<Self, 256, 66>(isa, rows.values, out);
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Self, 256, 66>(isa, bytes, out);
    }
}

/// A run of bytes of TQ1_0, the first of its elements, and how many elements a byte has.
struct Digits {
    bytes: Range<usize>,
    first: usize,
    count: usize,
}

const DIGITS: [Digits; 3] = [
    Digits { bytes: 0..32, first: 0, count: 5 },
    Digits { bytes: 32..48, first: 160, count: 5 },
    Digits { bytes: 48..52, first: 240, count: 4 },
];

impl Encode<256, 54> for Tq1_0 {
    #[inline(always)]
    fn encode(values: &[f32; 256], block: &mut [u8; 54]) {
        let (scale, digits) = digits_of(values);
        put_digits(scale, &digits, block);
    }
}

/// TQ1_0 of digits 0, 1 and 2.
#[inline(always)]
fn put_digits(scale: u16, digits: &[u8; 256], block: &mut [u8; 54]) {
    for Digits { bytes, first, count } in DIGITS {
        let stride = bytes.len();
        for (j, byte) in block[bytes].iter_mut().enumerate() {
            let digit = |n: usize| if n < count { u32::from(digits[first + j + stride * n]) } else { 0 };
            let number = (0..5).fold(0, |number, n| 3 * number + digit(n));
            *byte = (256 * number).div_ceil(243) as u8;
        }
    }
    block[52..].copy_from_slice(&scale.to_le_bytes());
}

/// The digits of TQ1_0, and the scale.
#[inline(always)]
fn take_digits(block: &[u8; 54], digits: &mut [u8; 256]) -> u16 {
    for Digits { bytes, first, count } in DIGITS {
        let stride = bytes.len();
        for (n, power) in [1, 3, 9, 27, 81].into_iter().enumerate().take(count) {
            let digits = &mut digits[first + stride * n..][..stride];
            for (digit, byte) in digits.iter_mut().zip(&block[bytes.clone()]) {
                *digit = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8;
            }
        }
    }
    u16::from_le_bytes([block[52], block[53]])
}

/// Codes have zero at 2, digits at 1.
const ZERO_BEYOND_DIGIT: u8 = 1;

impl CodedBlock<256, 54, 1> for Tq1_0 {
    #[inline(always)]
    fn put([scale]: &[u16; 1], _minimum: u16, codes: &[u8; 256], block: &mut [u8; 54]) {
        put_digits(*scale, &codes.map(digit_of), block);
    }

    #[inline(always)]
    fn take(block: &[u8; 54], codes: &mut [u8; 256]) -> ([u16; 1], u16) {
        let scale = take_digits(block, codes);
        codes.iter_mut().for_each(|code| *code += ZERO_BEYOND_DIGIT);
        ([scale], 0)
    }
}

impl CodedBlock<256, 66, 1> for Tq2_0 {
    #[inline(always)]
    fn put([scale]: &[u16; 1], _minimum: u16, codes: &[u8; 256], block: &mut [u8; 66]) {
        put_pairs(*scale, &codes.map(digit_of), block);
    }

    #[inline(always)]
    fn take(block: &[u8; 66], codes: &mut [u8; 256]) -> ([u16; 1], u16) {
        for (run, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (code, byte) in codes.iter_mut().zip(&block[run / 4 * 32..][..32]) {
                *code = pair_of_bits(*byte, run % 4) + ZERO_BEYOND_DIGIT;
            }
        }
        ([u16::from_le_bytes([block[64], block[65]])], 0)
    }
}

/// The digit of a two-bit code; -2 has no digit and becomes -1.
#[inline(always)]
fn digit_of(code: u8) -> u8 {
    (code & 3).saturating_sub(ZERO_BEYOND_DIGIT)
}

impl Encode<256, 66> for Tq2_0 {
    #[inline(always)]
    fn encode(values: &[f32; 256], block: &mut [u8; 66]) {
        let (scale, digits) = digits_of(values);
        put_pairs(scale, &digits, block);
    }
}

/// TQ2_0 of digits 0, 1 and 2.
#[inline(always)]
fn put_pairs(scale: u16, digits: &[u8; 256], block: &mut [u8; 66]) {
    put_pairs_of_bits(|j| digits[j], &mut block[..32]);
    put_pairs_of_bits(|j| digits[128 + j], &mut block[32..64]);
    block[64..].copy_from_slice(&scale.to_le_bytes());
}

impl Decode<256, 54> for Tq1_0 {
    #[inline(always)]
    fn decode(block: &[u8; 54], out: &mut [f32; 256]) {
        let mut digits = [0; 256];
        let scale = f16_to_f32(take_digits(block, &mut digits));
        for (out, digit) in out.iter_mut().zip(digits) {
            *out = scale * (f32::from(digit) - 1.0);
        }
    }
}

impl Decode<256, 66> for Tq2_0 {
    #[inline(always)]
    fn decode(block: &[u8; 66], out: &mut [f32; 256]) {
        let scale = f16_to_f32(u16::from_le_bytes([block[64], block[65]]));
        for (run, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (out, byte) in out.iter_mut().zip(&block[run / 4 * 32..][..32]) {
                *out = scale * (f32::from(pair_of_bits(*byte, run % 4)) - 1.0);
            }
        }
    }
}

/// The bits of the scale, and 0, 1 or 2 for each element.
#[inline(always)]
fn digits_of(values: &[f32; 256]) -> (u16, [u8; 256]) {
    let scale = largest_magnitude(values).min(F16_MAX);
    let inverse = inverse(scale);
    let mut codes = [0; 256];
    for (code, value) in codes.iter_mut().zip(values) {
        *code = (round_half_away(value * inverse).clamp(-1, 1) + 1) as u8;
    }
    (f16_bits(scale), codes)
}
