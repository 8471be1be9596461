//! Sums of outer products of rows, `x^T y`, in tiles of bfloat16, added to totals in `f32`. Not which part of the totals
//! is kept, which the strips say.

use super::super::matmul::Matrix;
use super::{BAND, DEPTH, with_packed};
use crate::arithmetic::round_to_bf16;
use crate::simd::{Isa, Loop, SIDE, Start, Tile, TileUnit, dispatch, prefetch};
use rayon::prelude::*;

/// Rows of `x` and `y` whose products are summed in tiles before they are added to the totals: so few that the bands of a
/// strip stay in the second-level cache, and so many that the totals are seldom read and written.
const TOKENS: usize = 1024;
/// Rows of the totals that a thread works on at a time, while it reads `y` once.
pub(in crate::linalg) const STRIP: usize = 4 * BAND;
/// Bands of columns that a thread packs at a time: a kilobyte of every row.
const PACKED: usize = 8;

/// Some rows of the totals, of `columns` elements each: those of the features of `x` from `first` on.
pub(in crate::linalg) struct Strip<'a> {
    pub(in crate::linalg) first: usize,
    pub(in crate::linalg) columns: usize,
    pub(in crate::linalg) totals: &'a mut [f32],
}

/// Adds `x^T y` to the totals, both rounded to bfloat16, on all threads of the current rayon pool, which changes no bit.
/// The rows of both are contiguous.
pub(in crate::linalg) fn add_outer(unit: TileUnit, x: Matrix<'_>, y: Matrix<'_>, mut strips: Vec<Strip<'_>>) {
    let most = x.rows.min(TOKENS).div_ceil(DEPTH) * y.columns.div_ceil(BAND);
    with_packed(most, |packed| {
        for start in (0..x.rows).step_by(TOKENS) {
            let tokens = start..(start + TOKENS).min(x.rows);
            let steps = tokens.len().div_ceil(DEPTH);
            let right = &mut packed[..y.columns.div_ceil(BAND) * steps];
            pack_right(y.part(tokens.clone()), 0, steps, right);
            let task = OuterProductTask { unit, x: x.part(tokens), steps, right };
            // The last strips of a lower half are the longest.
            strips.par_iter_mut().rev().with_max_len(1).for_each_init(Vec::new, |left, strip| task.run(strip, left));
        }
    });
}

/// Packs columns from `first` on as right operands, band by band. Each row of a tile holds two rows of `y`.
pub(super) fn pack_right(y: Matrix<'_>, first: usize, steps: usize, out: &mut [[Tile; 2]]) {
    out.par_chunks_mut((PACKED * steps).max(1)).enumerate().for_each(|(index, pairs)| {
        dispatch(Isa::best(), Columns { rows: y, first: first + index * PACKED * BAND, steps, pairs });
    });
}

struct OuterProductTask<'a> {
    unit: TileUnit,
    x: Matrix<'a>,
    steps: usize,
    right: &'a [[Tile; 2]],
}

impl OuterProductTask<'_> {
    fn run(&self, strip: &mut Strip<'_>, left: &mut Vec<[Tile; 2]>) {
        let Strip { first, columns, totals } = strip;
        let (unit, steps, columns) = (self.unit, self.steps, (*columns).max(1));
        left.resize((totals.len() / columns).div_ceil(BAND) * steps, [Tile::ZERO; 2]);
        dispatch(Isa::best(), Columns { rows: self.x, first: *first, steps, pairs: left });
        // A left operand has features in its rows.
        left.iter_mut().flatten().for_each(|tile| unit.transpose(tile));
        unit.with_tiles(|tiles| {
            let mut sums = [[Tile::ZERO; 2]; 2];
            for (index, right) in self.right.chunks(steps).take(columns.div_ceil(BAND)).enumerate() {
                for (left, rows) in left.chunks(steps).zip(totals.chunks_mut(BAND * columns)) {
                    // Rows of totals stand too far apart for the processor to see a sequence.
                    rows.chunks(columns).for_each(|row| prefetch(&row[index * BAND..columns.min((index + 1) * BAND)]));
                    tiles.multiply(left, right, Start::Zero, &mut sums);
                    dispatch(Isa::best(), Add { sums: &sums, first: index * BAND, rows, columns });
                }
            }
        });
    }
}

/// Packs columns from `first` on: tile `[column / 32][token / 32][column / 16 % 2]`, its row `token / 2 % 16`, columns
/// along the row. What lies outside the matrix is zero.
struct Columns<'a> {
    rows: Matrix<'a>,
    first: usize,
    steps: usize,
    pairs: &'a mut [[Tile; 2]],
}

impl Loop for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Columns { rows, first, steps, pairs } = self;
        let row = |token: usize| match token < rows.rows {
            true => &rows.data[token * rows.row_step..][..rows.columns],
            false => &[],
        };
        for token in (0..steps * DEPTH).step_by(2) {
            let (even, odd) = (row(token), row(token + 1));
            for (band, pairs) in pairs.chunks_mut(steps).enumerate() {
                for (half, tile) in pairs[token / DEPTH].iter_mut().enumerate() {
                    let column = first + band * BAND + half * SIDE;
                    tile.0[token / 2 % SIDE] = words(from(even, column), from(odd, column));
                }
            }
        }
    }
}

#[inline(always)]
fn from(row: &[f32], column: usize) -> &[f32] {
    row.get(column..).unwrap_or(&[])
}

/// The first sixteen numbers of two rows as bfloat16 side by side.
#[inline(always)]
fn words(even: &[f32], odd: &[f32]) -> [u32; SIDE] {
    let half = |x: f32| round_to_bf16(x).to_bits() >> 16;
    // A length that the compiler knows lets it do without a loop.
    match (even.first_chunk::<SIDE>(), odd.first_chunk::<SIDE>()) {
        (Some(even), Some(odd)) => std::array::from_fn(|i| half(even[i]) | half(odd[i]) << 16),
        _ => std::array::from_fn(|i| {
            let of = |row: &[f32]| row.get(i).map_or(0, |x| half(*x));
            of(even) | of(odd) << 16
        }),
    }
}

/// Adds sums to rows of `columns` totals, from column `first` on.
struct Add<'a> {
    sums: &'a [[Tile; 2]; 2],
    first: usize,
    rows: &'a mut [f32],
    columns: usize,
}

impl Loop for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (index, row) in self.rows.chunks_mut(self.columns).enumerate() {
            let sums = self.sums[index / SIDE].each_ref().map(|tile| &tile.0[index % SIDE]);
            for (sums, totals) in sums.into_iter().zip(row[self.first..].chunks_mut(SIDE)) {
                match totals.first_chunk_mut::<SIDE>() {
                    Some(totals) => add_words(totals, sums),
                    None => add_words(totals, sums),
                }
            }
        }
    }
}

#[inline(always)]
fn add_words(totals: &mut [f32], sums: &[u32; SIDE]) {
    totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += f32::from_bits(*sum));
}
