//! MXFP4 and NVFP4: floats of four bits (e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives) with small scales.
//!
//! | type | elements | bytes | fields |
//! |---|---|---|---|
//! | MXFP4 | 32 | 17 | e8m0 scale; 16 bytes of nibbles: byte `j` has element `j` below, `j + 16` above |
//! | NVFP4 | 64 | 36 | four e4m3 scales without sign; four times eight bytes of nibbles, one for 16 elements: byte `j` has element `j` below, `j + 8` above |
//!
//! `w = scale * value`. NVFP4's global scale is not part of the blocks: values must be divided by
//! it before they are quantized.
//!
//! The scales are those of llama.cpp (`2^(floor(log2 amax) - 2)`, and `amax / 6` rounded to e4m3) or one of their neighbours,
//! whichever leaves the least weighted squared error.

use super::block::{Decode, EncodeWeighted, Layout, Rows, decode_blocks, encode_weighted};
use super::coded::CodedBlock;
use super::grid::{E2M1_DOUBLED, E2m1, Grid};
use super::lanes::Lanes;
use super::planes::{put_nibbles, take_nibbles};
use super::tile::{Tile, codes_of};
use crate::format::MiniFloat;
use crate::simd::{Isa, entries};

pub(super) struct Mxfp4;

pub(super) struct Nvfp4;

impl Layout for Mxfp4 {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 17;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        encode_weighted::<Self, 256, 136>(isa, rows, out);
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Self, 32, 17>(isa, bytes, out);
    }
}

impl Layout for Nvfp4 {
    const ELEMENTS: usize = 64;
    const BYTES: usize = 36;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        encode_weighted::<Self, 256, 144>(isa, rows, out);
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Self, 64, 36>(isa, bytes, out);
    }
}

impl CodedBlock<32, 17, 1> for Mxfp4 {
    #[inline(always)]
    fn put([scale]: &[u16; 1], _minimum: u16, codes: &[u8; 32], block: &mut [u8; 17]) {
        block[0] = *scale as u8;
        put_nibbles(codes, &mut block[1..]);
    }

    #[inline(always)]
    fn take(block: &[u8; 17], codes: &mut [u8; 32]) -> ([u16; 1], u16) {
        take_nibbles(&block[1..], codes);
        ([u16::from(block[0])], 0)
    }
}

impl CodedBlock<64, 36, 4> for Nvfp4 {
    #[inline(always)]
    fn put(scales: &[u16; 4], _minimum: u16, codes: &[u8; 64], block: &mut [u8; 36]) {
        let (heads, nibbles) = block.split_at_mut(4);
        for (head, scale) in heads.iter_mut().zip(scales) {
            *head = *scale as u8;
        }
        for (bytes, codes) in nibbles.chunks_exact_mut(8).zip(codes.chunks_exact(16)) {
            put_nibbles(codes, bytes);
        }
    }

    #[inline(always)]
    fn take(block: &[u8; 36], codes: &mut [u8; 64]) -> ([u16; 4], u16) {
        for (bytes, codes) in block[4..].chunks_exact(8).zip(codes.chunks_exact_mut(16)) {
            take_nibbles(bytes, codes);
        }
        ([block[0], block[1], block[2], block[3]].map(u16::from), 0)
    }
}

/// Eight blocks.
impl EncodeWeighted<256, 136> for Mxfp4 {
    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<&[f32; 256]>, out: &mut [u8; 136]) {
        let tile = Tile::<32, 8>::new(values, importance.map(<[f32; 256]>::as_slice));
        let floor = tile.magnitudes().map(|amax| power_below(amax) * 0.25);
        let candidates = [1.0, 2.0, 0.5].map(|step| (floor * Lanes::splat(step * tile.unit)).0.map(e8m0_bits));
        let (scales, codes) = best_of(&tile, candidates, |bits| half_of_e8m0(bits) * 2.0);
        for ((block, codes), scale) in out.as_chunks_mut().0.iter_mut().zip(&codes).zip(scales) {
            Mxfp4::put(&[u16::from(scale)], 0, codes, block);
        }
    }
}

/// Four blocks.
impl EncodeWeighted<256, 144> for Nvfp4 {
    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<&[f32; 256]>, out: &mut [u8; 144]) {
        let tile = Tile::<16, 16>::new(values, importance.map(<[f32; 256]>::as_slice));
        let amax = tile.magnitudes() * Lanes::splat(tile.unit);
        let nearest = amax.0.map(|amax| MiniFloat::E4M3.encode(amax / MiniFloat::E2M1.max()));
        let candidates = [0, -1, 1, -2, 2, -3, 3].map(|step| nearest.map(|code| neighbour(code, step)));
        let (scales, codes) = best_of(&tile, candidates, |bits| half_of_e4m3(bits) * 2.0);
        let (codes, _) = codes.as_flattened().as_chunks::<64>();
        for ((block, codes), scales) in out.as_chunks_mut().0.iter_mut().zip(codes).zip(scales.as_chunks().0) {
            Nvfp4::put(&scales.map(u16::from), 0, codes, block);
        }
    }
}

/// The scale of each group with the least error, the first where several have it, and the codes.
#[inline(always)]
fn best_of<const K: usize, const L: usize, const C: usize>(
    tile: &Tile<K, L>,
    candidates: [[u8; L]; C],
    value_of: impl Fn(u8) -> f32,
) -> ([u8; L], [[u8; K]; L]) {
    let in_units = 1.0 / tile.unit;
    let (mut best, mut scale, mut least) = ([0; L], Lanes::splat(0.0), Lanes::splat(f32::INFINITY));
    for bits in candidates {
        let candidate = Lanes(bits.map(|bits| value_of(bits) * in_units));
        let error = tile.error(E2m1, candidate);
        for (lane, best) in best.iter_mut().enumerate() {
            *best = if error.0[lane] < least.0[lane] { bits[lane] } else { *best };
        }
        scale = candidate.where_less(error, least, scale);
        least = error.min(least);
    }
    let inverse = scale.inverse();
    (best, codes_of(|k| E2m1.codes(E2m1.nearest(tile.values[k] * inverse))))
}

/// The greatest power of two that is not above a normal number.
#[inline(always)]
fn power_below(value: f32) -> f32 {
    f32::from_bits(value.to_bits() & 0x7F80_0000)
}

/// The byte of a power of two, the least where it is below all.
#[inline(always)]
pub(super) fn e8m0_bits(power: f32) -> u8 {
    (power.to_bits() >> 23).min(254) as u8
}

/// Half of an e8m0 scale: the table of levels is doubled. All 256 bytes are numbers.
#[inline(always)]
pub(super) fn half_of_e8m0(bits: u8) -> f32 {
    match bits {
        0..2 => f32::from_bits(0x0020_0000 << bits),
        _ => f32::from_bits(u32::from(bits - 1) << 23),
    }
}

/// The code `step` further, within those that are positive and finite.
#[inline(always)]
fn neighbour(code: u8, step: i16) -> u8 {
    (i16::from(code) + step).clamp(0, 0x7E) as u8
}

/// Half of an e4m3 scale, its sign bit left out. What is NaN in e4m3fn is 0 without the sign bit.
#[inline(always)]
pub(super) fn half_of_e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(bits >> 3 & 0xF), f32::from(bits & 7));
    let power = f32::from_bits((exponent.max(1) + 127 - 8) << 23);
    let hidden = if exponent == 0 { 0.0 } else { 1.0 };
    if bits == 0x7F { 0.0 } else { (hidden + mantissa / 8.0) * power }
}

impl Decode<32, 17> for Mxfp4 {
    #[inline(always)]
    fn decode(block: &[u8; 17], out: &mut [f32; 32]) {
        let mut codes = [0; 32];
        Mxfp4::take(block, &mut codes);
        decode_codes(half_of_e8m0(block[0]), &codes, out);
    }
}

impl Decode<64, 36> for Nvfp4 {
    #[inline(always)]
    fn decode(block: &[u8; 36], out: &mut [f32; 64]) {
        let mut codes = [0; 64];
        let (scales, _) = Nvfp4::take(block, &mut codes);
        let groups = out.as_chunks_mut::<16>().0.iter_mut().zip(codes.as_chunks::<16>().0);
        for ((out, codes), scale) in groups.zip(scales) {
            decode_codes(half_of_e4m3(scale as u8), codes, out);
        }
    }
}

#[inline(always)]
fn decode_codes<const N: usize>(half_scale: f32, codes: &[u8; N], out: &mut [f32; N]) {
    for (out, doubled) in out.iter_mut().zip(entries(&E2M1_DOUBLED, codes)) {
        *out = half_scale * f32::from(doubled);
    }
}
