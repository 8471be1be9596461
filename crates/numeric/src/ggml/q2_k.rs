//! Q2_K: 256 elements in 84 bytes, in 16 groups of 16, each with a scale and a minimum of four bits.
//! `w = d * scale * q - dmin * minimum`.
//!
//! 16 bytes with the scale of a group below and its minimum above; 64 bytes of codes; binary16 `d`; binary16 `dmin`. Byte
//! `j` of the `c`-th 32 bytes of codes has elements `j`, `j + 32`, `j + 64` and `j + 96` of the `c`-th half, lowest bits first.

use super::affine_fit::AffineSearch;
use super::affine_scales::affine_block;
use super::block::{Decode, EncodeWeighted, Layout, Rows, decode_blocks, encode_weighted};
use super::grouped::{Head, NestedBlock};
use super::planes::{pair_of_bits, put_pairs_of_bits};
use crate::arithmetic::f16_to_f32;
use crate::simd::Isa;

pub(super) struct Q2K;

impl Layout for Q2K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 84;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        encode_weighted::<Self, 256, 84>(isa, rows, out);
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Self, 256, 84>(isa, bytes, out);
    }
}

const SEARCH: AffineSearch =
    AffineSearch { levels: 3.0, first: -1.0, step: 0.1, trials: 21, refinements: 3, covers_zero: true };
const GREATEST_SCALE: f32 = 15.0;

impl EncodeWeighted<256, 84> for Q2K {
    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<&[f32; 256]>, out: &mut [u8; 84]) {
        let importance = importance.map(<[f32; 256]>::as_slice);
        let block = affine_block::<16, 16>(SEARCH, GREATEST_SCALE, values, importance);
        let (head, codes) = block.parts();
        Q2K::put(&head, &codes, out);
    }
}

impl NestedBlock<84, 16> for Q2K {
    #[inline(always)]
    fn put(head: &Head<16>, codes: &[u8; 256], out: &mut [u8; 84]) {
        for (byte, (scale, minimum)) in out.iter_mut().zip(head.scales.iter().zip(head.minima)) {
            *byte = *scale as u8 & 0xF | minimum << 4;
        }
        put_pairs_of_bits(|j| codes[j], &mut out[16..48]);
        put_pairs_of_bits(|j| codes[128 + j], &mut out[48..80]);
        out[80..82].copy_from_slice(&head.factors[0].to_le_bytes());
        out[82..].copy_from_slice(&head.factors[1].to_le_bytes());
    }

    fn take(block: &[u8; 84], codes: &mut [u8; 256]) -> Head<16> {
        for (j, code) in codes.iter_mut().enumerate() {
            *code = pair_of_bits(block[16 + j / 128 * 32 + j % 32], j / 32 % 4);
        }
        Head {
            factors: [80, 82].map(|at| u16::from_le_bytes([block[at], block[at + 1]])),
            scales: std::array::from_fn(|group| (block[group] & 0xF) as i8),
            minima: std::array::from_fn(|group| block[group] >> 4),
        }
    }
}

impl Decode<256, 84> for Q2K {
    #[inline(always)]
    fn decode(block: &[u8; 84], out: &mut [f32; 256]) {
        let d = f16_to_f32(u16::from_le_bytes([block[80], block[81]]));
        let dmin = f16_to_f32(u16::from_le_bytes([block[82], block[83]]));
        for (group, (out, byte)) in out.as_chunks_mut::<16>().0.iter_mut().zip(block).enumerate() {
            let (scale, minimum) = (d * f32::from(byte & 0xF), dmin * f32::from(byte >> 4));
            let codes = &block[16 + group / 8 * 32 + group % 2 * 16..][..16];
            for (out, byte) in out.iter_mut().zip(codes) {
                *out = scale * f32::from(pair_of_bits(*byte, group / 2 % 4)) - minimum;
            }
        }
    }
}
