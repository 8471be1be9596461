//! Q4_0 and Q5_0: 32 integers with one scale.
//!
//! | type | bytes | fields |
//! |---|---|---|
//! | Q4_0 | 18 | binary16 `d`; 16 bytes of nibbles |
//! | Q5_0 | 22 | binary16 `d`; four bytes, bit `j` of which is bit 4 of element `j`; 16 bytes of nibbles |
//!
//! Byte `j` of the nibbles has element `j` below and element `j + 16` above. `w = d * (q - half)`, `half` being 8 or 16.
//!
//! Without importance: `d = max / -half`, `max` being the first element of the largest magnitude with its sign, and
//! `q = floor(w / d + half + 0.5)`, at most `2 half - 1`, `d` not yet rounded: llama.cpp's `quantize_row_q4_0_ref` and
//! `quantize_row_q5_0_ref`, except that a scale beyond binary16 saturates. With importance, scales are searched for
//! ([`super::symmetric_fit`]).

use super::block::{Decode, Encode, EncodeWeighted, Layout, Rows, decode_blocks, encode_blocks, encode_weighted};
use super::coded::CodedBlock;
use super::grid::Integers;
use super::planes::{put_fifth_bits, put_nibbles, take_fifth_bits, take_nibbles};
use super::scale::{F16_MAX, f16_bits, floor, inverse};
use super::symmetric_fit::{SymmetricSearch, Trials};
use super::symmetric_scales::symmetric_blocks;
use super::tile::largest_magnitude;
use crate::arithmetic::f16_to_f32;
use crate::simd::Isa;

pub(super) struct Q4_0;

pub(super) struct Q5_0;

impl Layout for Q4_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 18;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        match rows.importance {
            None => encode_blocks::<Self, 32, 18>(isa, rows.values, out),
            Some(_) => encode_weighted::<Self, 256, 144>(isa, rows, out),
        }
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Self, 32, 18>(isa, bytes, out);
    }
}

impl Layout for Q5_0 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 22;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        match rows.importance {
            None => encode_blocks::<Self, 32, 22>(isa, rows.values, out),
            Some(_) => encode_weighted::<Self, 256, 176>(isa, rows, out),
        }
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Self, 32, 22>(isa, bytes, out);
    }
}

impl CodedBlock<32, 18, 1> for Q4_0 {
    #[inline(always)]
    fn put([scale]: &[u16; 1], _minimum: u16, codes: &[u8; 32], block: &mut [u8; 18]) {
        block[..2].copy_from_slice(&scale.to_le_bytes());
        put_nibbles(codes, &mut block[2..]);
    }

    #[inline(always)]
    fn take(block: &[u8; 18], codes: &mut [u8; 32]) -> ([u16; 1], u16) {
        take_nibbles(&block[2..], codes);
        ([u16::from_le_bytes([block[0], block[1]])], 0)
    }
}

impl CodedBlock<32, 22, 1> for Q5_0 {
    #[inline(always)]
    fn put([scale]: &[u16; 1], _minimum: u16, codes: &[u8; 32], block: &mut [u8; 22]) {
        block[..2].copy_from_slice(&scale.to_le_bytes());
        block[2..6].copy_from_slice(&put_fifth_bits(codes));
        put_nibbles(codes, &mut block[6..]);
    }

    #[inline(always)]
    fn take(block: &[u8; 22], codes: &mut [u8; 32]) -> ([u16; 1], u16) {
        take_nibbles(&block[6..], codes);
        take_fifth_bits([block[2], block[3], block[4], block[5]], codes);
        ([u16::from_le_bytes([block[0], block[1]])], 0)
    }
}

impl Encode<32, 18> for Q4_0 {
    #[inline(always)]
    fn encode(values: &[f32; 32], block: &mut [u8; 18]) {
        let mut codes = [0; 32];
        let scale = reference_codes::<8>(values, &mut codes);
        Q4_0::put(&[scale], 0, &codes, block);
    }
}

impl Encode<32, 22> for Q5_0 {
    #[inline(always)]
    fn encode(values: &[f32; 32], block: &mut [u8; 22]) {
        let mut codes = [0; 32];
        let scale = reference_codes::<16>(values, &mut codes);
        Q5_0::put(&[scale], 0, &codes, block);
    }
}

impl EncodeWeighted<256, 144> for Q4_0 {
    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<&[f32; 256]>, out: &mut [u8; 144]) {
        searched::<Q4_0, 18>(search(8.0), values, importance, out);
    }
}

impl EncodeWeighted<256, 176> for Q5_0 {
    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<&[f32; 256]>, out: &mut [u8; 176]) {
        searched::<Q5_0, 22>(search(16.0), values, importance, out);
    }
}

impl Decode<32, 18> for Q4_0 {
    #[inline(always)]
    fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
        let mut codes = [0; 32];
        let ([scale], _) = Q4_0::take(block, &mut codes);
        decode_codes::<8>(scale, &codes, out);
    }
}

impl Decode<32, 22> for Q5_0 {
    #[inline(always)]
    fn decode(block: &[u8; 22], out: &mut [f32; 32]) {
        let mut codes = [0; 32];
        let ([scale], _) = Q5_0::take(block, &mut codes);
        decode_codes::<16>(scale, &codes, out);
    }
}

/// Around both ends of the integers.
#[inline(always)]
fn search(half: f32) -> SymmetricSearch<Integers> {
    let around = |end: f32| Trials { first: end - 1.0, step: 0.2, count: 11 };
    SymmetricSearch { grid: Integers { half }, ends: [around(-half), around(half - 1.0)], refinements: 2 }
}

/// Eight blocks.
#[inline(always)]
fn searched<T: CodedBlock<32, B, 1>, const B: usize>(
    search: SymmetricSearch<Integers>,
    values: &[f32; 256],
    importance: Option<&[f32; 256]>,
    out: &mut [u8],
) {
    let (scales, codes) = symmetric_blocks::<_, 32, 8>(search, values, importance.map(<[f32; 256]>::as_slice));
    for ((block, codes), scale) in out.as_chunks_mut::<B>().0.iter_mut().zip(&codes).zip(scales) {
        T::put(&[scale], 0, codes, block);
    }
}

#[inline(always)]
fn decode_codes<const HALF: i32>(scale: u16, codes: &[u8; 32], out: &mut [f32; 32]) {
    let scale = f16_to_f32(scale);
    for (out, code) in out.iter_mut().zip(codes) {
        *out = (i32::from(*code) - HALF) as f32 * scale;
    }
}

/// Codes by the reference formula, and the bits of the scale.
#[inline(always)]
fn reference_codes<const HALF: i32>(values: &[f32; 32], codes: &mut [u8; 32]) -> u16 {
    let half = HALF as f32;
    let scale = (signed_max(values) / -half).clamp(-F16_MAX, F16_MAX);
    let inverse = inverse(scale);
    for (code, value) in codes.iter_mut().zip(values) {
        *code = floor(value * inverse + (half + 0.5)).clamp(0, 2 * HALF - 1) as u8;
    }
    f16_bits(scale)
}

/// The first element of the largest magnitude; 0 where all are zeros of either sign.
#[inline(always)]
fn signed_max(values: &[f32; 32]) -> f32 {
    let amax = largest_magnitude(values).to_bits();
    let positive = values.iter().fold(false, |any, value| any | (value.to_bits() == amax));
    let negative = values.iter().fold(false, |any, value| any | (value.to_bits() == amax | 0x8000_0000));
    let amax = f32::from_bits(amax);
    match (positive, negative) {
        (true, false) => amax,
        (false, true) if amax > 0.0 => -amax,
        _ => values.iter().copied().find(|value| value.abs() == amax && amax > 0.0).unwrap_or(0.0),
    }
}
