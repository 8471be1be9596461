//! Q6_K: 256 elements in 210 bytes, in 16 groups of 16, each with a scale of eight bits. `w = d * scale * (q - 32)`.
//!
//! 128 bytes of the low four bits; 64 bytes of the high two; 16 scales in two's complement; binary16 `d`. Of the `c`-th
//! half of the elements, byte `j` of the `c`-th 64 bytes has element `j` below and element `j + 64` above, and byte `j` of
//! the `c`-th 32 has the high bits of elements `j`, `j + 32`, `j + 64` and `j + 96`, lowest bits first.

use super::block::{Decode, EncodeWeighted, Layout, Rows, decode_blocks, encode_weighted};
use super::grid::Integers;
use super::grouped::{Head, NestedBlock};
use super::planes::{pair_of_bits, put_nibbles, put_pairs_of_bits, take_nibbles};
use super::symmetric_fit::{SymmetricSearch, Trials};
use super::symmetric_scales::symmetric_block;
use crate::arithmetic::f16_to_f32;
use crate::simd::Isa;

pub(super) struct Q6K;

impl Layout for Q6K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 210;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        encode_weighted::<Self, 256, 210>(isa, rows, out);
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Self, 256, 210>(isa, bytes, out);
    }
}

const SEARCH: SymmetricSearch<Integers> = SymmetricSearch {
    grid: Integers { half: 32.0 },
    ends: [Trials { first: -33.0, step: 0.125, count: 15 }, Trials { first: 30.5, step: 0.25, count: 4 }],
    refinements: 1,
};
const HALF_OF_SCALES: f32 = 128.0;

impl EncodeWeighted<256, 210> for Q6K {
    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<&[f32; 256]>, out: &mut [u8; 210]) {
        let importance = importance.map(<[f32; 256]>::as_slice);
        let block = symmetric_block::<_, 16, 16>(SEARCH, HALF_OF_SCALES, values, importance);
        let (head, codes) = block.parts();
        Q6K::put(&head, &codes, out);
    }
}

impl NestedBlock<210, 16> for Q6K {
    #[inline(always)]
    fn put(head: &Head<16>, codes: &[u8; 256], out: &mut [u8; 210]) {
        for half in 0..2 {
            put_nibbles(&codes[128 * half..128 * half + 128], &mut out[64 * half..64 * half + 64]);
            put_pairs_of_bits(|j| codes[128 * half + j] >> 4, &mut out[128 + 32 * half..160 + 32 * half]);
        }
        for (byte, scale) in out[192..208].iter_mut().zip(head.scales) {
            *byte = scale as u8;
        }
        out[208..].copy_from_slice(&head.factors[0].to_le_bytes());
    }

    fn take(block: &[u8; 210], codes: &mut [u8; 256]) -> Head<16> {
        for half in 0..2 {
            take_nibbles(&block[64 * half..64 * half + 64], &mut codes[128 * half..128 * half + 128]);
        }
        for (j, code) in codes.iter_mut().enumerate() {
            *code |= pair_of_bits(block[128 + j / 128 * 32 + j % 32], j / 32 % 4) << 4;
        }
        Head {
            factors: [u16::from_le_bytes([block[208], block[209]]), 0],
            scales: std::array::from_fn(|group| block[192 + group] as i8),
            minima: [0; 16],
        }
    }
}

impl Decode<256, 210> for Q6K {
    #[inline(always)]
    fn decode(block: &[u8; 210], out: &mut [f32; 256]) {
        let d = f16_to_f32(u16::from_le_bytes([block[208], block[209]]));
        let mut codes = [0; 256];
        for half in 0..2 {
            take_nibbles(&block[64 * half..64 * half + 64], &mut codes[128 * half..128 * half + 128]);
        }
        for (group, (out, codes)) in out.as_chunks_mut::<16>().0.iter_mut().zip(codes.as_chunks::<16>().0).enumerate() {
            let scale = d * f32::from(block[192 + group] as i8);
            let high = &block[128 + group / 8 * 32 + group % 2 * 16..][..16];
            for ((out, low), high) in out.iter_mut().zip(codes).zip(high) {
                let code = low | pair_of_bits(*high, group / 2 % 4) << 4;
                *out = scale * f32::from(code as i8 - 32);
            }
        }
    }
}
