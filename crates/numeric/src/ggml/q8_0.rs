//! Q8_0: 32 elements in 34 bytes: a binary16 scale `d`, then 32 integers of eight bits. `w = d * q`.
//!
//! `d = amax / 127`, `q = round(w / d)` with halves away from zero, `d` not yet rounded: llama.cpp's
//! `quantize_row_q8_0_ref`, but that a scale beyond binary16 saturates.

use super::block::{Decode, Encode, Layout, Rows, decode_blocks, encode_blocks};
use super::coded::CodedBlock;
use super::scale::{F16_MAX, f16_bits, inverse, round_half_away};
use super::tile::largest_magnitude;
use crate::arithmetic::f16_to_f32;
use crate::simd::Isa;

pub(super) struct Q8_0;

impl Layout for Q8_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 34;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        encode_blocks::<Q8_0, 32, 34>(isa, rows.values, out);
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Q8_0, 32, 34>(isa, bytes, out);
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

impl Encode<32, 34> for Q8_0 {
    #[inline(always)]
    fn encode(values: &[f32; 32], block: &mut [u8; 34]) {
        let scale = (largest_magnitude(values) / 127.0).min(F16_MAX);
        let inverse = inverse(scale);
        let mut codes = [0; 32];
        for (code, value) in codes.iter_mut().zip(values) {
            *code = round_half_away(value * inverse).clamp(-127, 127) as u8;
        }
        Q8_0::put(&[f16_bits(scale)], 0, &codes, block);
    }
}

impl Decode<32, 34> for Q8_0 {
    #[inline(always)]
    fn decode(block: &[u8; 34], out: &mut [f32; 32]) {
        let mut codes = [0; 32];
        let ([scale], _) = Q8_0::take(block, &mut codes);
        let scale = f16_to_f32(scale);
        for (out, code) in out.iter_mut().zip(codes) {
            *out = f32::from(code as i8) * scale;
        }
    }
}
