//! Q4_1 and Q5_1: 32 integers with a scale and a minimum.
//!
//! | type | bytes | fields |
//! |---|---|---|
//! | Q4_1 | 20 | binary16 `d`, binary16 `m`; 16 bytes of nibbles |
//! | Q5_1 | 24 | binary16 `d`, binary16 `m`; four bytes, bit `j` of which is bit 4 of element `j`; 16 bytes of nibbles |
//!
//! Byte `j` of the nibbles has element `j` below and element `j + 16` above. `w = d * q + m`.
//!
//! Without importance: `m = min`, `d = (max - min) / levels`, `q = floor((w - m) / d + 0.5)`, neither yet rounded:
//! as in llama.cpp's `quantize_row_q4_1_ref` and `quantize_row_q5_1_ref`, except that values beyond binary16 saturate. With
//! importance, scales and minima are searched for ([`super::affine_fit`]).

use super::affine_fit::AffineSearch;
use super::affine_scales::affine_blocks;
use super::block::{Decode, Encode, EncodeWeighted, Layout, Rows, decode_blocks, encode_blocks, encode_weighted};
use super::coded::CodedBlock;
use super::lanes::Lanes;
use super::planes::{put_fifth_bits, put_nibbles, take_fifth_bits, take_nibbles};
use super::scale::{F16_MAX, f16_bits, floor, inverse};
use crate::arithmetic::f16_to_f32;
use crate::simd::Isa;

pub(super) struct Q4_1;

pub(super) struct Q5_1;

impl Layout for Q4_1 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 20;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        match rows.importance {
            None => encode_blocks::<Self, 32, 20>(isa, rows.values, out),
            Some(_) => encode_weighted::<Self, 256, 160>(isa, rows, out),
        }
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Self, 32, 20>(isa, bytes, out);
    }
}

impl Layout for Q5_1 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 24;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        match rows.importance {
            None => encode_blocks::<Self, 32, 24>(isa, rows.values, out),
            Some(_) => encode_weighted::<Self, 256, 192>(isa, rows, out),
        }
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Self, 32, 24>(isa, bytes, out);
    }
}

impl CodedBlock<32, 20, 1> for Q4_1 {
    #[inline(always)]
    fn put([scale]: &[u16; 1], minimum: u16, codes: &[u8; 32], block: &mut [u8; 20]) {
        block[..2].copy_from_slice(&scale.to_le_bytes());
        block[2..4].copy_from_slice(&minimum.to_le_bytes());
        put_nibbles(codes, &mut block[4..]);
    }

    #[inline(always)]
    fn take(block: &[u8; 20], codes: &mut [u8; 32]) -> ([u16; 1], u16) {
        take_nibbles(&block[4..], codes);
        ([u16::from_le_bytes([block[0], block[1]])], u16::from_le_bytes([block[2], block[3]]))
    }
}

impl CodedBlock<32, 24, 1> for Q5_1 {
    #[inline(always)]
    fn put([scale]: &[u16; 1], minimum: u16, codes: &[u8; 32], block: &mut [u8; 24]) {
        block[..2].copy_from_slice(&scale.to_le_bytes());
        block[2..4].copy_from_slice(&minimum.to_le_bytes());
        block[4..8].copy_from_slice(&put_fifth_bits(codes));
        put_nibbles(codes, &mut block[8..]);
    }

    #[inline(always)]
    fn take(block: &[u8; 24], codes: &mut [u8; 32]) -> ([u16; 1], u16) {
        take_nibbles(&block[8..], codes);
        take_fifth_bits([block[4], block[5], block[6], block[7]], codes);
        ([u16::from_le_bytes([block[0], block[1]])], u16::from_le_bytes([block[2], block[3]]))
    }
}

impl Encode<32, 20> for Q4_1 {
    #[inline(always)]
    fn encode(values: &[f32; 32], block: &mut [u8; 20]) {
        let mut codes = [0; 32];
        let (scale, minimum) = reference_codes::<15>(values, &mut codes);
        Q4_1::put(&[scale], minimum, &codes, block);
    }
}

impl Encode<32, 24> for Q5_1 {
    #[inline(always)]
    fn encode(values: &[f32; 32], block: &mut [u8; 24]) {
        let mut codes = [0; 32];
        let (scale, minimum) = reference_codes::<31>(values, &mut codes);
        Q5_1::put(&[scale], minimum, &codes, block);
    }
}

impl EncodeWeighted<256, 160> for Q4_1 {
    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<&[f32; 256]>, out: &mut [u8; 160]) {
        searched::<Q4_1, 20>(15.0, values, importance, out);
    }
}

impl EncodeWeighted<256, 192> for Q5_1 {
    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<&[f32; 256]>, out: &mut [u8; 192]) {
        searched::<Q5_1, 24>(31.0, values, importance, out);
    }
}

impl Decode<32, 20> for Q4_1 {
    #[inline(always)]
    fn decode(block: &[u8; 20], out: &mut [f32; 32]) {
        let mut codes = [0; 32];
        let ([scale], minimum) = Q4_1::take(block, &mut codes);
        decode_codes(scale, minimum, &codes, out);
    }
}

impl Decode<32, 24> for Q5_1 {
    #[inline(always)]
    fn decode(block: &[u8; 24], out: &mut [f32; 32]) {
        let mut codes = [0; 32];
        let ([scale], minimum) = Q5_1::take(block, &mut codes);
        decode_codes(scale, minimum, &codes, out);
    }
}

#[inline(always)]
fn decode_codes(scale: u16, minimum: u16, codes: &[u8; 32], out: &mut [f32; 32]) {
    let (scale, minimum) = (f16_to_f32(scale), f16_to_f32(minimum));
    for (out, code) in out.iter_mut().zip(codes) {
        *out = f32::from(*code) * scale + minimum;
    }
}

/// Eight blocks.
#[inline(always)]
fn searched<T: CodedBlock<32, B, 1>, const B: usize>(
    levels: f32,
    values: &[f32; 256],
    importance: Option<&[f32; 256]>,
    out: &mut [u8],
) {
    let search = AffineSearch { levels, first: -1.0, step: 0.125, trials: 17, refinements: 3, covers_zero: false };
    let (factors, codes) = affine_blocks::<32, 8>(search, values, importance.map(<[f32; 256]>::as_slice));
    for ((block, codes), [scale, minimum]) in out.as_chunks_mut::<B>().0.iter_mut().zip(&codes).zip(factors) {
        T::put(&[scale], minimum, codes, block);
    }
}

/// Codes by the reference formula, and the bits of scale and minimum.
#[inline(always)]
fn reference_codes<const LEVELS: i32>(values: &[f32; 32], codes: &mut [u8; 32]) -> (u16, u16) {
    let (low, high) = bounds(values);
    let scale = ((high - low) / LEVELS as f32).min(F16_MAX);
    let minimum = low.clamp(-F16_MAX, F16_MAX);
    let inverse = inverse(scale);
    for (code, value) in codes.iter_mut().zip(values) {
        *code = floor((value - minimum) * inverse + 0.5).clamp(0, LEVELS) as u8;
    }
    (f16_bits(scale), f16_bits(minimum))
}

/// The least and the greatest element. Where the least is a zero, the first zero: signs of zeros are stored.
#[inline(always)]
fn bounds(values: &[f32; 32]) -> (f32, f32) {
    let (rows, _) = values.as_chunks::<8>();
    let (mut low, mut high) = (Lanes(rows[0]), Lanes(rows[0]));
    for row in rows {
        (low, high) = (Lanes(*row).min(low), Lanes(*row).max(high));
    }
    let low = low.0.iter().fold(f32::INFINITY, |low, value| if *value < low { *value } else { low });
    let high = high.0.iter().fold(f32::NEG_INFINITY, |high, value| if *value > high { *value } else { high });
    let low = if low == 0.0 { values.iter().copied().find(|value| *value == 0.0).unwrap_or(low) } else { low };
    (low, high)
}
