//! Q8_0: 32 elements in 34 bytes: a binary16 scale `d`, then 32 integers of eight bits. `w = d * q`.
//!
//! `d = amax / 127`, `q = round(w / d)` with halves away from zero, `d` not yet rounded: llama.cpp's
//! `quantize_row_q8_0_ref`, but that a scale beyond binary16 saturates.

use super::block::{Layout, Rows, decode_blocks, encode_blocks};
use super::coded::CodedBlock;
use super::scale::{F16_MAX, f16_bits, inverse};
use crate::arithmetic::f16_to_f32;
use crate::simd::Isa;

pub(super) struct Q8_0;

impl Layout for Q8_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 34;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        encode_blocks(isa, rows.values, out, encode);
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks(isa, bytes, out, decode);
    }
}

impl CodedBlock<32, 34, 1> for Q8_0 {
    #[inline(always)]
    fn put([scale]: &[u16; 1], _minimum: u16, codes: &[u8; 32], block: &mut [u8; 34]) {
        block[..2].copy_from_slice(&scale.to_le_bytes());
        block[2..].copy_from_slice(codes);
    }

    #[inline(always)]
    fn take(block: &[u8; 34], codes: &mut [u8; 32]) -> ([u16; 1], u16) {
        codes.copy_from_slice(&block[2..]);
        ([u16::from_le_bytes([block[0], block[1]])], 0)
    }
}

/// Added to a magnitude it makes truncation round, halves up: the greatest number below one half, so that what is below a
/// half stays below.
const BELOW_HALF: f32 = 0.499_999_97;

#[inline(always)]
fn encode(values: &[f32; 32], block: &mut [u8; 34]) {
    // Magnitudes order as their bits, and maxima of integers depend on no order.
    let amax = f32::from_bits(values.iter().fold(0, |max, value| max.max(value.to_bits() & 0x7FFF_FFFF)));
    let scale = (amax / 127.0).min(F16_MAX);
    let inverse = inverse(scale);
    let mut codes = [0; 32];
    for (code, value) in codes.iter_mut().zip(values) {
        let scaled = (value * inverse).clamp(-127.0, 127.0);
        *code = (scaled + BELOW_HALF.copysign(scaled)) as i32 as u8;
    }
    Q8_0::put(&[f16_bits(scale)], 0, &codes, block);
}

#[inline(always)]
fn decode(block: &[u8; 34], out: &mut [f32; 32]) {
    let mut codes = [0; 32];
    let ([scale], _) = Q8_0::take(block, &mut codes);
    let scale = f16_to_f32(scale);
    for (out, code) in out.iter_mut().zip(codes) {
        *out = f32::from(code as i8) * scale;
    }
}
