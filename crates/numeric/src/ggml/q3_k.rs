//! Q3_K: 256 elements in 110 bytes, in 16 groups of 16, each with a scale of six bits. `w = d * (scale - 32) * (q - 4)`.
//!
//! 32 bytes, bit `g` of byte `j` being the highest bit of element `32 g + j`; 64 bytes of the low two bits, as in Q2_K; 12
//! bytes of scales; binary16 `d`. Of scales, bytes 0 to 7 have the low four bits of scales 0 to 7 and, above, of 8 to 15;
//! byte `8 + j` has the highest two of scales `j`, `j + 4`, `j + 8` and `j + 12`, lowest bits first.

use super::block::{Decode, EncodeWeighted, Layout, Rows, decode_blocks, encode_weighted};
use super::grid::Integers;
use super::grouped::{Head, NestedBlock};
use super::planes::{pair_of_bits, put_bits, put_pairs_of_bits, take_bits};
use super::symmetric_fit::{SymmetricSearch, Trials};
use super::symmetric_scales::symmetric_block;
use crate::arithmetic::f16_to_f32;
use crate::simd::Isa;

pub(super) struct Q3K;

impl Layout for Q3K {
    const ELEMENTS: usize = 256;
    const BYTES: usize = 110;

    fn quantize(isa: Isa, rows: Rows<'_>, out: &mut [u8]) {
        encode_weighted::<Self, 256, 110>(isa, rows, out);
    }

    fn dequantize(isa: Isa, bytes: &[u8], out: &mut [f32]) {
        decode_blocks::<Self, 256, 110>(isa, bytes, out);
    }
}

const SEARCH: SymmetricSearch<Integers> = SymmetricSearch {
    grid: Integers { half: 4.0 },
    ends: [Trials { first: -5.0, step: 0.125, count: 15 }, Trials { first: 2.4, step: 0.15, count: 8 }],
    refinements: 2,
};
const HALF_OF_SCALES: f32 = 32.0;

impl EncodeWeighted<256, 110> for Q3K {
    #[inline(always)]
    fn encode(values: &[f32; 256], importance: Option<&[f32; 256]>, out: &mut [u8; 110]) {
        let importance = importance.map(<[f32; 256]>::as_slice);
        let block = symmetric_block::<_, 16, 16>(SEARCH, HALF_OF_SCALES, values, importance);
        let (head, codes) = block.parts();
        Q3K::put(&head, &codes, out);
    }
}

impl NestedBlock<110, 16> for Q3K {
    #[inline(always)]
    fn put(head: &Head<16>, codes: &[u8; 256], out: &mut [u8; 110]) {
        put_bits(codes, 2, &mut out[..32]);
        put_pairs_of_bits(|j| codes[j], &mut out[32..64]);
        put_pairs_of_bits(|j| codes[128 + j], &mut out[64..96]);
        put_scales(head.scales, &mut out[96..108]);
        out[108..].copy_from_slice(&head.factors[0].to_le_bytes());
    }

    fn take(block: &[u8; 110], codes: &mut [u8; 256]) -> Head<16> {
        for (j, code) in codes.iter_mut().enumerate() {
            *code = pair_of_bits(block[32 + j / 128 * 32 + j % 32], j / 32 % 4);
        }
        take_bits(&block[..32], 2, codes);
        Head {
            factors: [u16::from_le_bytes([block[108], block[109]]), 0],
            scales: std::array::from_fn(|group| take_scale(&block[96..108], group)),
            minima: [0; 16],
        }
    }
}

#[inline(always)]
fn put_scales(scales: [i8; 16], out: &mut [u8]) {
    let scales = scales.map(|scale| (scale + 32) as u8);
    for j in 0..8 {
        out[j] = scales[j] & 0xF | scales[j + 8] << 4;
    }
    for j in 0..4 {
        out[8 + j] = (0..4).fold(0, |bits, run| bits | scales[4 * run + j] >> 4 << (2 * run));
    }
}

#[inline(always)]
fn take_scale(packed: &[u8], group: usize) -> i8 {
    let low = packed[group % 8] >> (4 * (group / 8)) & 0xF;
    (low | pair_of_bits(packed[8 + group % 4], group / 4) << 4) as i8 - 32
}

impl Decode<256, 110> for Q3K {
    #[inline(always)]
    fn decode(block: &[u8; 110], out: &mut [f32; 256]) {
        let d = f16_to_f32(u16::from_le_bytes([block[108], block[109]]));
        for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let scale = d * f32::from(take_scale(&block[96..108], group));
            let (start, run) = (group % 2 * 16, group / 2);
            let low = &block[32 + group / 8 * 32 + start..][..16];
            for ((out, low), high) in out.iter_mut().zip(low).zip(&block[start..start + 16]) {
                let code = pair_of_bits(*low, run % 4) | (high >> run & 1) << 2;
                *out = scale * f32::from(code as i8 - 4);
            }
        }
    }
}
