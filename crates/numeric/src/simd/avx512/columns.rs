//! Sums of products of numbers with rows of 32 columns, by hand: the compiler does not keep the sums in registers.
#![allow(unsafe_code)]

use super::{Avx512, LANES};
use crate::simd::Tile;
use std::arch::x86_64::*;

/// Rows of sums that registers hold.
pub(crate) const ROWS: usize = 8;

impl Avx512 {
    /// Adds `a b` to eight rows of `out` from row `at` on: element `(i, t)` of `a` stands at `i * row_step + t * depth_step`;
    /// row `r` of `b` and of `out`, of 32 columns, is row `r % 16` of the tiles `r / 16`, all being `f32`.
    ///
    /// # Panics
    ///
    /// If an element lies outside its slice.
    pub(crate) fn add_products(
        self,
        a: &[f32],
        (row_step, depth_step): (usize, usize),
        depth: usize,
        b: &[[Tile; 2]],
        out: &mut [[Tile; 2]],
        at: usize,
    ) {
        let last = depth.checked_sub(1).map_or(0, |last| (ROWS - 1) * row_step + last * depth_step + 1);
        assert!(last <= a.len() && depth <= b.len() * LANES && at + ROWS <= out.len() * LANES, "outside of a slice");
        // SAFETY: the value is the proof of AVX-512; the bounds were just checked.
        unsafe { add_products(a.as_ptr(), (row_step, depth_step), depth, b, out, at) }
    }
}

/// # Safety
///
/// As [`Avx512::add_products`] checks.
#[target_feature(enable = "avx512f")]
unsafe fn add_products(
    a: *const f32,
    (row_step, depth_step): (usize, usize),
    depth: usize,
    b: &[[Tile; 2]],
    out: &mut [[Tile; 2]],
    at: usize,
) {
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for (row, sums) in sums.iter_mut().enumerate() {
        *sums = load(&out[(at + row) / LANES], (at + row) % LANES);
    }
    for t in 0..depth {
        let [first, second] = load(&b[t / LANES], t % LANES);
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's.
            let factor = _mm512_set1_ps(unsafe { *a.add(row * row_step + t * depth_step) });
            sums[0] = _mm512_fmadd_ps(factor, first, sums[0]);
            sums[1] = _mm512_fmadd_ps(factor, second, sums[1]);
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (tile, sums) in out[(at + row) / LANES].iter_mut().zip(sums) {
            // SAFETY: a row of a tile has the 64 bytes that are written, aligned.
            unsafe { _mm512_store_ps(tile.0[(at + row) % LANES].as_mut_ptr().cast(), *sums) }
        }
    }
}

/// A row of two tiles.
#[inline]
#[target_feature(enable = "avx512f")]
fn load(pair: &[Tile; 2], row: usize) -> [__m512; 2] {
    // SAFETY: a row of a tile has the 64 bytes that are read, aligned.
    [0, 1].map(|group| unsafe { _mm512_load_ps(pair[group].0[row].as_ptr().cast()) })
}
