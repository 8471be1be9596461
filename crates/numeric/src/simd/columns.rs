//! Sums of products of numbers with rows of 32 columns, by hand: the compiler does not keep the sums in registers.
#![allow(unsafe_code)]

use super::isa::{Isa, Level};
use super::tile::{SIDE, Tile};
#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Numbers in memory: number `(row, column)` is element `row * row_step + column * column_step`.
#[derive(Clone, Copy)]
pub(crate) struct Factors<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) row_step: usize,
    pub(crate) column_step: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
}

/// Adds `a b` to the first rows of `out` and returns how many these are. Row `r` of `b` and of `out`, of 32 columns, is row
/// `r % 16` of the tiles `r / 16`, all being `f32`. Products are fused with sums, in the order of the columns of `a`.
///
/// # Panics
///
/// If an element lies outside its slice.
pub(crate) fn add_rows_by_hand(isa: Isa, a: Factors<'_>, b: &[[Tile; 2]], out: &mut [[Tile; 2]]) -> usize {
    let last = |count: usize, step: usize| count.checked_sub(1).map(|last| last * step);
    let Some(last) = last(a.rows, a.row_step).zip(last(a.columns, a.column_step)) else { return a.rows };
    let inside = last.0 + last.1 < a.data.len() && a.columns <= b.len() * SIDE && a.rows <= out.len() * SIDE;
    assert!(inside, "outside of a slice");
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if isa.level() == Level::Avx512 {
        while done + AVX512_ROWS <= a.rows {
            // SAFETY: an `Isa` of this level exists only where AVX-512 was detected; the bounds were just checked.
            unsafe { avx512(a, b, out, done) }
            done += AVX512_ROWS;
        }
    }
    if isa.level() != Level::Baseline {
        while done + FEW_ROWS <= a.rows {
            // SAFETY: an `Isa` of these levels exists only where AVX2 and FMA, or NEON, were detected; the bounds were checked.
            unsafe { few_rows(a, b, out, done) }
            done += FEW_ROWS;
        }
    }
    done
}

/// Rows of sums that registers hold with AVX-512.
#[cfg(target_arch = "x86_64")]
const AVX512_ROWS: usize = 8;

/// # Safety
///
/// As [`add_rows_by_hand`] checks, for the rows from `at` on.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512(a: Factors<'_>, b: &[[Tile; 2]], out: &mut [[Tile; 2]], at: usize) {
    // SAFETY: a row of a tile has the 64 bytes that are read, aligned.
    let load = |tile: &Tile, row: usize| unsafe { _mm512_load_ps(tile.0[row].as_ptr().cast()) };
    let load = |pair: &[Tile; 2], row: usize| [load(&pair[0], row), load(&pair[1], row)];
    let mut sums = [[_mm512_setzero_ps(); 2]; AVX512_ROWS];
    for (row, sums) in sums.iter_mut().enumerate() {
        *sums = load(&out[(at + row) / SIDE], (at + row) % SIDE);
    }
    for column in 0..a.columns {
        let [first, second] = load(&b[column / SIDE], column % SIDE);
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's.
            let factor = unsafe { *a.data.as_ptr().add((at + row) * a.row_step + column * a.column_step) };
            let factor = _mm512_set1_ps(factor);
            sums[0] = _mm512_fmadd_ps(factor, first, sums[0]);
            sums[1] = _mm512_fmadd_ps(factor, second, sums[1]);
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (tile, sums) in out[(at + row) / SIDE].iter_mut().zip(sums) {
            // SAFETY: a row of a tile has the 64 bytes that are written, aligned.
            unsafe { _mm512_store_ps(tile.0[(at + row) % SIDE].as_mut_ptr().cast(), *sums) }
        }
    }
}

/// Rows of sums that registers hold with AVX2 and NEON, with a row of `b`.
const FEW_ROWS: usize = 2;

/// # Safety
///
/// As [`add_rows_by_hand`] checks, for the rows from `at` on.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn few_rows(a: Factors<'_>, b: &[[Tile; 2]], out: &mut [[Tile; 2]], at: usize) {
    // SAFETY: a row of a tile has the two halves that are read, aligned.
    let load =
        |tile: &Tile, row: usize, half: usize| unsafe { _mm256_load_ps(tile.0[row].as_ptr().add(8 * half).cast()) };
    let load = |pair: &[Tile; 2], row: usize| {
        [load(&pair[0], row, 0), load(&pair[0], row, 1), load(&pair[1], row, 0), load(&pair[1], row, 1)]
    };
    let mut sums = [[_mm256_setzero_ps(); 4]; FEW_ROWS];
    for (row, sums) in sums.iter_mut().enumerate() {
        *sums = load(&out[(at + row) / SIDE], (at + row) % SIDE);
    }
    for column in 0..a.columns {
        let b = load(&b[column / SIDE], column % SIDE);
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller's.
            let factor = unsafe { *a.data.as_ptr().add((at + row) * a.row_step + column * a.column_step) };
            let factor = _mm256_set1_ps(factor);
            sums[0] = _mm256_fmadd_ps(factor, b[0], sums[0]);
            sums[1] = _mm256_fmadd_ps(factor, b[1], sums[1]);
            sums[2] = _mm256_fmadd_ps(factor, b[2], sums[2]);
            sums[3] = _mm256_fmadd_ps(factor, b[3], sums[3]);
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (part, sum) in sums.iter().enumerate() {
            let tile = &mut out[(at + row) / SIDE][part / 2];
            // SAFETY: a row of a tile has the two halves that are written, aligned.
            unsafe { _mm256_store_ps(tile.0[(at + row) % SIDE].as_mut_ptr().add(8 * (part % 2)).cast(), *sum) }
        }
    }
}

/// # Safety
///
/// As [`add_rows_by_hand`] checks, for the rows from `at` on.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn few_rows(a: Factors<'_>, b: &[[Tile; 2]], out: &mut [[Tile; 2]], at: usize) {
    /// Vectors of a row.
    const PARTS: usize = 8;
    // SAFETY: a row of a tile has the four quarters that are read.
    let load = |pair: &[Tile; 2], row: usize, part: usize| unsafe {
        vld1q_f32(pair[part / 4].0[row].as_ptr().add(4 * (part % 4)).cast())
    };
    let mut sums = [[vdupq_n_f32(0.0); PARTS]; FEW_ROWS];
    for (row, sums) in sums.iter_mut().enumerate() {
        for (part, sum) in sums.iter_mut().enumerate() {
            *sum = load(&out[(at + row) / SIDE], (at + row) % SIDE, part);
        }
    }
    for column in 0..a.columns {
        let b = &b[column / SIDE];
        let factors = [0, 1].map(|row| {
            // SAFETY: the caller's.
            unsafe { *a.data.as_ptr().add((at + row) * a.row_step + column * a.column_step) }
        });
        for part in 0..PARTS {
            let b = load(b, column % SIDE, part);
            for (sums, factor) in sums.iter_mut().zip(factors) {
                sums[part] = vfmaq_n_f32(sums[part], b, factor);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        for (part, sum) in sums.iter().enumerate() {
            let tile = &mut out[(at + row) / SIDE][part / 4];
            // SAFETY: a row of a tile has the four quarters that are written.
            unsafe { vst1q_f32(tile.0[(at + row) % SIDE].as_mut_ptr().add(4 * (part % 4)).cast(), *sum) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_the_same_on_every_isa_and_stay_within_their_rows() {
        let value = |i: usize| ((i * 7919 + 131) % 2003) as f32 / 1001.5 - 1.0;
        let data: Vec<f32> = (0..21 * 40).map(value).collect();
        let tile =
            |seed: usize| Tile(std::array::from_fn(|r| std::array::from_fn(|c| value(r * 16 + c + seed).to_bits())));
        let b = [[tile(1), tile(2)], [tile(3), tile(4)], [tile(5), tile(6)]];
        let start = [[tile(7), tile(8)], [tile(9), tile(10)]];
        let at = |tiles: &[[Tile; 2]], row: usize, column: usize| {
            f32::from_bits(tiles[row / SIDE][column / SIDE].0[row % SIDE][column % SIDE])
        };
        for (rows, columns, row_step, column_step) in [(0, 3, 3, 1), (21, 40, 40, 1), (13, 37, 1, 21), (1, 5, 5, 1)] {
            let a = Factors { data: &data, row_step, column_step, rows, columns };
            for isa in Isa::available() {
                let mut out = start;
                let done = add_rows_by_hand(isa, a, &b, &mut out);
                assert!(if isa == Isa::BASELINE { done == 0 } else { rows - done < FEW_ROWS }, "{} {done}", isa.name());
                for (row, column) in (0..2 * SIDE).flat_map(|row| (0..2 * SIDE).map(move |column| (row, column))) {
                    let columns = if row < done { 0..columns } else { 0..0 };
                    let expected = columns.fold(at(&start, row, column), |sum, t| {
                        data[row * row_step + t * column_step].mul_add(at(&b, t, column), sum)
                    });
                    assert_eq!(at(&out, row, column), expected, "{} {row} {column}", isa.name());
                }
            }
        }
    }
}
