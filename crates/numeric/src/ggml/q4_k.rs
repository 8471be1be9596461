//! Q4_K and Q5_K: 256 elements in eight groups of 32, each with a scale and a minimum of six bits.
//! `w = d * scale * q - dmin * minimum`.
//!
//! | type | bytes | fields |
//! |---|---|---|
//! | Q4_K | 144 | binary16 `d`, binary16 `dmin`; 12 bytes of scales and minima; 128 bytes of nibbles |
//! | Q5_K | 176 | the same with 32 bytes before the nibbles: bit `g` of byte `k` is bit 4 of element `k` of group `g` |
//!
//! Byte `k` of the `c`-th 32 bytes of nibbles has element `k` of group `2 c` below and of group `2 c + 1` above. Of scales
//! and minima, bytes 0 to 3 have scales 0 to 3 in their low six bits and the two highest bits of scales 4 to 7 above them,
//! bytes 4 to 7 minima likewise, and bytes 8 to 11 the low four bits of scales 4 to 7 and, above, of minima 4 to 7.

use super::affine_fit::AffineSearch;
use super::affine_scales::affine_block;
use super::block::{Decode, EncodeWeighted, Layout, Rows, decode_blocks, encode_weighted};
use super::grouped::{Head, NestedBlock};
use super::planes::{put_bits, put_nibbles, take_bits, take_nibbles};
use crate::arithmetic::f16_to_f32;
use crate::simd::Isa;

pub(super) struct Q4K;

pub(super) struct Q5K;

impl Layout for Q4K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 144;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        encode_weighted::<Q4K, 256, 144>(isa, rows, out);
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Q4K, 256, 144>(isa, bytes, out);
    }
}

impl Layout for Q5K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 176;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        encode_weighted::<Q5K, 256, 176>(isa, rows, out);
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Q5K, 256, 176>(isa, bytes, out);
    }
}

const SEARCH: AffineSearch =
    AffineSearch { levels: 15.0, first: -1.0, step: 0.125, trials: 17, refinements: 2, covers_zero: true };
const GREATEST_SCALE: f32 = 63.0;

impl EncodeWeighted<256, 144> for Q4K {
    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<&[f32; 256]>, out: &mut [u8; 144]) {
        let block = affine_block::<32, 8>(SEARCH, GREATEST_SCALE, values, importance.map(<[f32; 256]>::as_slice));
        let (head, codes) = block.parts();
        Q4K::put(&head, &codes, out);
    }
}

impl EncodeWeighted<256, 176> for Q5K {
    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<&[f32; 256]>, out: &mut [u8; 176]) {
        let search = AffineSearch { levels: 31.0, ..SEARCH };
        let block = affine_block::<32, 8>(search, GREATEST_SCALE, values, importance.map(<[f32; 256]>::as_slice));
        let (head, codes) = block.parts();
        Q5K::put(&head, &codes, out);
    }
}

impl NestedBlock<144, 8> for Q4K {
    #[inline(always)]
    fn put(head: &Head<8>, codes: &[u8; 256], out: &mut [u8; 144]) {
        put_head(head, &mut out[..16]);
        put_pairs(codes, &mut out[16..]);
    }

    fn take(block: &[u8; 144], codes: &mut [u8; 256]) -> Head<8> {
        *codes = take_pairs(&block[16..]);
        take_head(&block[..16])
    }
}

impl NestedBlock<176, 8> for Q5K {
    #[inline(always)]
    fn put(head: &Head<8>, codes: &[u8; 256], out: &mut [u8; 176]) {
        put_head(head, &mut out[..16]);
        put_bits(codes, 4, &mut out[16..48]);
        put_pairs(codes, &mut out[48..]);
    }

    fn take(block: &[u8; 176], codes: &mut [u8; 256]) -> Head<8> {
        *codes = take_pairs(&block[48..]);
        take_bits(&block[16..48], 4, codes);
        take_head(&block[..16])
    }
}

/// Nibbles of two groups share bytes.
#[inline(always)]
fn put_pairs(codes: &[u8; 256], out: &mut [u8]) {
    for (pair, bytes) in codes.chunks_exact(64).zip(out.chunks_exact_mut(32)) {
        put_nibbles(pair, bytes);
    }
}

/// Everything before the codes.
#[inline(always)]
fn put_head(head: &Head<8>, out: &mut [u8]) {
    out[..2].copy_from_slice(&head.factors[0].to_le_bytes());
    out[2..4].copy_from_slice(&head.factors[1].to_le_bytes());
    let (scales, minima) = (head.scales.map(|scale| scale as u8), &head.minima);
    for j in 0..4 {
        out[4 + j] = scales[j] & 63 | scales[j + 4] >> 4 << 6;
        out[8 + j] = minima[j] & 63 | minima[j + 4] >> 4 << 6;
        out[12 + j] = scales[j + 4] & 0xF | minima[j + 4] << 4;
    }
}

/// The inverse of [`put_head`].
#[inline(always)]
fn take_head(head: &[u8]) -> Head<8> {
    let factors = [0, 2].map(|at| u16::from_le_bytes([head[at], head[at + 1]]));
    let (packed, mut scales, mut minima) = (&head[4..16], [0; 8], [0; 8]);
    for j in 0..8 {
        let (scale, minimum) = match j {
            0..4 => (packed[j] & 63, packed[j + 4] & 63),
            _ => (packed[j + 4] & 0xF | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4),
        };
        (scales[j], minima[j]) = (scale as i8, minimum);
    }
    Head { factors, scales, minima }
}

impl Decode<256, 144> for Q4K {
    #[inline(always)]
    fn decode(block: &[u8; 144], out: &mut [f32; 256]) {
        decode_groups(take_head(&block[..16]), &take_pairs(&block[16..]), out);
    }
}

impl Decode<256, 176> for Q5K {
    #[inline(always)]
    fn decode(block: &[u8; 176], out: &mut [f32; 256]) {
        let mut codes = take_pairs(&block[48..]);
        take_bits(&block[16..48], 4, &mut codes);
        decode_groups(take_head(&block[..16]), &codes, out);
    }
}

#[inline(always)]
fn take_pairs(bytes: &[u8]) -> [u8; 256] {
    let mut codes = [0; 256];
    for (pair, bytes) in codes.chunks_exact_mut(64).zip(bytes.chunks_exact(32)) {
        take_nibbles(bytes, pair);
    }
    codes
}

#[inline(always)]
fn decode_groups(head: Head<8>, codes: &[u8; 256], out: &mut [f32; 256]) {
    let [d, dmin] = head.factors.map(f16_to_f32);
    let groups = out.chunks_exact_mut(32).zip(codes.chunks_exact(32));
    for ((out, codes), (scale, minimum)) in groups.zip(head.scales.into_iter().zip(head.minima)) {
        let (scale, minimum) = (d * f32::from(scale), dmin * f32::from(minimum));
        for (out, code) in out.iter_mut().zip(codes) {
            *out = scale * f32::from(*code) - minimum;
        }
    }
}
