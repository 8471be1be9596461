//! IQ4_NL and IQ4_XS: four-bit codes for 16 unevenly spaced levels ([`super::grid::IQ4_LEVELS`]).
//!
//! | type | elements | bytes | fields |
//! |---|---|---|---|
//! | IQ4_NL | 32 | 18 | binary16 `d`; 16 bytes of nibbles. `w = d * level` |
//! | IQ4_XS | 256 | 136 | binary16 `d`; 16 bits, two for each of eight groups of 32: the highest of its scale; four bytes of nibbles: the low four bits of scales; 128 bytes of nibbles, 16 a group. `w = d * (scale - 32) * level` |
//!
//! Byte `j` of a group's nibbles has element `j` below and element `j + 16` above; scales go lowest bits first.

use super::block::{Decode, EncodeWeighted, Layout, Rows, decode_blocks, encode_weighted};
use super::coded::CodedBlock;
use super::grid::{IQ4_LEVELS, Iq4};
use super::grouped::{Head, NestedBlock};
use super::planes::{put_nibbles, take_nibbles};
use super::symmetric::Q4_0;
use super::symmetric_fit::{SymmetricSearch, Trials};
use super::symmetric_scales::{symmetric_block, symmetric_blocks};
use crate::arithmetic::f16_to_f32;
use crate::simd::{Isa, entries};

pub(super) struct Iq4Nl;

pub(super) struct Iq4Xs;

impl Layout for Iq4Nl {
    const ELEMENTS: usize = 32;
    const BYTES: usize = 18;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        encode_weighted::<Self, 256, 144>(isa, rows, out);
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Self, 32, 18>(isa, bytes, out);
    }
}

impl Layout for Iq4Xs {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 136;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        encode_weighted::<Self, 256, 136>(isa, rows, out);
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Self, 256, 136>(isa, bytes, out);
    }
}

const SEARCH: SymmetricSearch<Iq4> = SymmetricSearch {
    grid: Iq4,
    ends: [Trials { first: -137.0, step: 2.0, count: 11 }, Trials { first: 101.0, step: 2.4, count: 10 }],
    refinements: 2,
};
const HALF_OF_SCALES: f32 = 32.0;

/// Eight blocks, which are laid out as those of Q4_0 are.
impl EncodeWeighted<256, 144> for Iq4Nl {
    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<&[f32; 256]>, out: &mut [u8; 144]) {
        let (scales, codes) = symmetric_blocks::<_, 32, 8>(SEARCH, values, importance.map(<[f32; 256]>::as_slice));
        for ((block, codes), scale) in out.as_chunks_mut().0.iter_mut().zip(&codes).zip(scales) {
            Q4_0::put(&[scale], 0, codes, block);
        }
    }
}

impl EncodeWeighted<256, 136> for Iq4Xs {
    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<&[f32; 256]>, out: &mut [u8; 136]) {
        let importance = importance.map(<[f32; 256]>::as_slice);
        let block = symmetric_block::<_, 32, 8>(SEARCH, HALF_OF_SCALES, values, importance);
        let (head, codes) = block.parts();
        Iq4Xs::put(&head, &codes, out);
    }
}

impl NestedBlock<136, 8> for Iq4Xs {
    #[inline(always)]
    fn put(head: &Head<8>, codes: &[u8; 256], out: &mut [u8; 136]) {
        let scales = head.scales.map(|scale| (scale + 32) as u8);
        let high =
            scales.iter().enumerate().fold(0, |bits, (group, scale)| bits | u16::from(scale >> 4) << (2 * group));
        out[..2].copy_from_slice(&head.factors[0].to_le_bytes());
        out[2..4].copy_from_slice(&high.to_le_bytes());
        for (byte, pair) in out[4..8].iter_mut().zip(scales.as_chunks::<2>().0) {
            *byte = pair[0] & 0xF | pair[1] << 4;
        }
        for (bytes, codes) in out[8..].chunks_exact_mut(16).zip(codes.chunks_exact(32)) {
            put_nibbles(codes, bytes);
        }
    }

    fn take(block: &[u8; 136], codes: &mut [u8; 256]) -> Head<8> {
        for (bytes, codes) in block[8..].chunks_exact(16).zip(codes.chunks_exact_mut(32)) {
            take_nibbles(bytes, codes);
        }
        Head {
            factors: [u16::from_le_bytes([block[0], block[1]]), 0],
            scales: std::array::from_fn(|group| take_scale(block, group)),
            minima: [0; 8],
        }
    }
}

/// The scale of a group of IQ4_XS.
#[inline(always)]
fn take_scale(block: &[u8; 136], group: usize) -> i8 {
    let high = u16::from_le_bytes([block[2], block[3]]);
    let low = block[4 + group / 2] >> (4 * (group % 2)) & 0xF;
    (low | ((high >> (2 * group) & 3) as u8) << 4) as i8 - 32
}

impl Decode<32, 18> for Iq4Nl {
    #[inline(always)]
    fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
        let mut codes = [0; 32];
        let ([scale], _) = Q4_0::take(block, &mut codes);
        decode_codes(f16_to_f32(scale), &codes, out);
    }
}

impl Decode<256, 136> for Iq4Xs {
    #[inline(always)]
    fn decode(block: &[u8; 136], out: &mut [f32; 256]) {
        let d = f16_to_f32(u16::from_le_bytes([block[0], block[1]]));
        let groups = out.as_chunks_mut::<32>().0.iter_mut().zip(block[8..].chunks_exact(16));
        for (group, (out, bytes)) in groups.enumerate() {
            let scale = take_scale(block, group);
            let mut codes = [0; 32];
            take_nibbles(bytes, &mut codes);
            decode_codes(d * f32::from(scale), &codes, out);
        }
    }
}

#[inline(always)]
fn decode_codes(scale: f32, codes: &[u8; 32], out: &mut [f32; 32]) {
    for (out, level) in out.iter_mut().zip(entries(&IQ4_LEVELS, codes)) {
        *out = scale * f32::from(level);
    }
}
