//! Products of tiles with the instruction of AVX-512 BF16 that adds products of pairs to sixteen sums, which AMD has since Zen 4 and
//! Intel in servers since Cooper Lake.
#![allow(unsafe_code)]

use super::{SIDE, Start, Tile, terms};
use crate::simd::Isa;
use crate::simd::isa::is_switched_off;
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Rows whose sums are in registers: with two vectors each half of the 32 that there are, so that enough are independent.
const ROWS: usize = 8;

/// Steps that are summed one after the other before they are added to the sums: an error of so many roundings, and of so many sums,
/// is far less than of all in one row.
const CHAIN: usize = 8;

/// The proof that the CPU has AVX-512 BF16, and AVX-512.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vectors(());

impl Vectors {
    /// The proof, if there is one. Found once.
    pub(super) fn get() -> Option<Vectors> {
        static FOUND: OnceLock<bool> = OnceLock::new();
        let is_there = || Isa::best().avx512().is_some() && std::arch::is_x86_feature_detected!("avx512bf16");
        let found = FOUND.get_or_init(|| !is_switched_off("KVANT_DISABLE_AVX512_BF16") && is_there());
        found.then_some(Vectors(()))
    }

    /// See [`Tiles::multiply`](super::Tiles::multiply).
    pub(super) fn multiply(self, a: &[[Tile; 2]], b: &[[Tile; 2]], start: Start, sums: &mut [[Tile; 2]; 2]) {
        let terms = terms(a.len(), b.len()).max(1);
        if start == Start::Zero {
            *sums = [[Tile::ZERO; 2]; 2];
        }
        // What all rows read of one chain stays in the first-level cache.
        for (a, b) in a.chunks(CHAIN * terms).zip(b.chunks(CHAIN)) {
            for (half, sums) in sums.iter_mut().enumerate() {
                for part in 0..SIDE / ROWS {
                    // SAFETY: a value of `Vectors` exists only where the CPU has AVX-512 F and BF16.
                    unsafe { add_chain(Left { a, terms, half, part }, b, sums) }
                }
            }
        }
    }
}

/// Some rows of a left operand.
struct Left<'a> {
    a: &'a [[Tile; 2]],
    terms: usize,
    /// Which tile of each pair.
    half: usize,
    /// Which of its rows, [`ROWS`] at a time.
    part: usize,
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn add_chain(left: Left<'_>, b: &[[Tile; 2]], sums: &mut [Tile; 2]) {
    let first = left.part * ROWS;
    for (row, totals) in chain(left, b).into_iter().enumerate() {
        for (tile, total) in sums.iter_mut().zip(totals) {
            let row = &mut tile.0[first + row];
            let sum = _mm512_add_ps(_mm512_castsi512_ps(load(row)), total);
            store(_mm512_castps_si512(sum), row);
        }
    }
}

/// The sums of a few steps. The instruction adds one product after the other, each sum rounded.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn chain(left: Left<'_>, b: &[[Tile; 2]]) -> [[__m512; 2]; ROWS] {
    let Left { a, terms, half, part } = left;
    let mut totals = [[_mm512_setzero_ps(); 2]; ROWS];
    for (a, b) in a.chunks_exact(terms).zip(b) {
        for a in a {
            let rows = &a[half].0.as_chunks::<ROWS>().0[part];
            for pair in 0..SIDE {
                let right = [pairs(load(&b[0].0[pair])), pairs(load(&b[1].0[pair]))];
                for (totals, row) in totals.iter_mut().zip(rows) {
                    let word = pairs(_mm512_set1_epi32(row[pair].cast_signed()));
                    totals[0] = _mm512_dpbf16_ps(totals[0], word, right[0]);
                    totals[1] = _mm512_dpbf16_ps(totals[1], word, right[1]);
                }
            }
        }
    }
    totals
}

/// The same bits as pairs of bfloat16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs(words: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes of which every pattern is a value.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(words) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(row: &[u32; SIDE]) -> __m512i {
    // SAFETY: the row has the 64 bytes that are read.
    unsafe { _mm512_loadu_si512(row.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(vector: __m512i, row: &mut [u32; SIDE]) {
    // SAFETY: the row has the 64 bytes that are written.
    unsafe { _mm512_storeu_si512(row.as_mut_ptr().cast(), vector) }
}
