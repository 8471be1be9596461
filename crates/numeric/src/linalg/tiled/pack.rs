//! From rows of numbers to tiles of bfloat16.

use super::super::matmul::Matrix;
use super::{BAND, DEPTH};
use crate::arithmetic::round_to_bf16;
use crate::kernel::{Elements, widen_elements};
use crate::simd::{Isa, Loop, SIDE, Tile, dispatch};
use std::ops::Range;

/// As what an `f32` enters a product of bfloat16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::linalg) enum Terms {
    /// Rounded, ties to even.
    Rounded,
    /// As the sum of three: 24 significant bits in three times 8.
    Exact,
}

impl Terms {
    /// The number of bfloat16 terms of one number.
    pub(in crate::linalg) fn count(self) -> usize {
        match self {
            Terms::Rounded => 1,
            Terms::Exact => 3,
        }
    }
}

/// Packs rows of a weight into the pairs of one band: tile `[step][row / 16]`, its row `row % 16`, depth along the row.
pub(super) fn pack_elements(rows: Elements<'_>, columns: usize, pairs: &mut [[Tile; 2]]) {
    let count = rows.len() / columns.max(1);
    if count < BAND {
        pairs.fill([Tile::ZERO; 2]);
    }
    let mut pack = |index: usize, row: &[f32]| {
        dispatch(Isa::best(), Values { row, index, terms: Terms::Rounded, pairs: &mut *pairs });
    };
    match rows {
        Elements::Bf16(stored) => dispatch(Isa::best(), StoredRows { rows: stored, columns, pairs }),
        Elements::Values(values) => values.chunks(columns.max(1)).enumerate().for_each(|(index, row)| pack(index, row)),
        Elements::F32(_) | Elements::F16(_) => {
            let mut values = vec![0.0; columns];
            for index in 0..count {
                widen_elements(Isa::best(), rows.slice(index * columns..(index + 1) * columns), &mut values);
                pack(index, &values);
            }
        }
    }
}

/// Packs rows of `x` into the pairs of one band: tile `[step][term][row / 16]`, its row `row % 16`, depth along the row.
pub(in crate::linalg) fn pack_values(x: Matrix<'_>, rows: Range<usize>, terms: Terms, pairs: &mut [[Tile; 2]]) {
    if rows.len() < BAND {
        pairs.fill([Tile::ZERO; 2]);
    }
    for (index, row) in rows.enumerate() {
        let row = &x.data[row * x.row_step..][..x.columns];
        dispatch(Isa::best(), Values { row, index, terms, pairs });
    }
}

/// Rows of bfloat16 as they are stored.
struct StoredRows<'a> {
    rows: &'a [[u8; 2]],
    columns: usize,
    pairs: &'a mut [[Tile; 2]],
}

impl Loop for StoredRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (index, row) in self.rows.chunks_exact(self.columns.max(1)).enumerate() {
            for (depth, pair) in row.chunks(DEPTH).zip(self.pairs.iter_mut()) {
                pair[index / SIDE].0[index % SIDE] = words(depth, |stored| u32::from(u16::from_le_bytes(*stored)));
            }
        }
    }
}

/// One row of `f32`.
struct Values<'a> {
    row: &'a [f32],
    /// Its place in the band.
    index: usize,
    terms: Terms,
    pairs: &'a mut [[Tile; 2]],
}

impl Loop for Values<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (tile, line) = (self.index / SIDE, self.index % SIDE);
        for (depth, pairs) in self.row.chunks(DEPTH).zip(self.pairs.chunks_exact_mut(self.terms.count())) {
            match pairs {
                [pair] => pair[tile].0[line] = words(depth, |x| upper(round_to_bf16(*x))),
                [first, second, third] => {
                    first[tile].0[line] = words(depth, |x| upper(split(*x)[0]));
                    second[tile].0[line] = words(depth, |x| upper(split(*x)[1]));
                    third[tile].0[line] = words(depth, |x| upper(split(*x)[2]));
                }
                _ => {}
            }
        }
    }
}

/// Up to 32 numbers as 16 words, zeros where there are fewer.
#[inline(always)]
fn words<T>(depth: &[T], half: impl Fn(&T) -> u32) -> [u32; SIDE] {
    let mut words = [0; SIDE];
    if let Ok(whole) = <&[T; DEPTH]>::try_from(depth) {
        for (index, word) in words.iter_mut().enumerate() {
            *word = half(&whole[2 * index]) | half(&whole[2 * index + 1]) << 16;
        }
    } else {
        for (word, pair) in words.iter_mut().zip(depth.chunks(2)) {
            *word = half(&pair[0]) | pair.get(1).map_or(0, |second| half(second) << 16);
        }
    }
    words
}

/// The upper half of a number's bits: the bfloat16, where it is one.
#[inline(always)]
fn upper(value: f32) -> u32 {
    value.to_bits() >> 16
}

/// Three bfloat16 whose sum is the number: what is left after the leading bits were cut off, twice. What is not finite is
/// the first.
#[inline(always)]
fn split(x: f32) -> [f32; 3] {
    let cut = |x: f32| f32::from_bits(x.to_bits() & 0xFFFF_0000);
    let first = if x.is_nan() { f32::NAN } else { cut(x) };
    let rest = if x.is_finite() { x - first } else { 0.0 };
    let second = cut(rest);
    [first, second, rest - second]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_bf16_terms_sum_to_the_value() {
        for x in [1.0, -std::f32::consts::PI, 3.4e38, 1e-30, -1.999_999_9, 0.0, 16_777_215.0] {
            let terms = split(x);
            assert!(terms.iter().all(|term| term.to_bits() & 0xFFFF == 0), "{x}: {terms:?}");
            assert_eq!(terms.iter().map(|term| f64::from(*term)).sum::<f64>(), f64::from(x));
        }
        assert!(split(f32::from_bits(0x7F80_0001))[0].is_nan());
        assert_eq!(split(f32::NEG_INFINITY), [f32::NEG_INFINITY, 0.0, 0.0]);
    }

    #[test]
    fn short_row_is_padded_with_zeros() {
        let mut expected = [0; SIDE];
        (expected[0], expected[1]) = (0x4000_3F80, 0x4040);
        assert_eq!(words(&[1.0, 2.0, 3.0], |x| upper(*x)), expected);
    }
}
