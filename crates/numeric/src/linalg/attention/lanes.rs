//! The products of attention in `f32`: a number meets a row of 32 queries in the lanes of vectors, so that keys and values
//! are used as they lie in memory.

use super::{BAND, Products, Square};
use crate::linalg::matmul::Matrix;
use crate::simd::{Isa, Loop, SIDE, Tile, dispatch};
use std::ops::Range;

/// Keys and values of one head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lanes<'a> {
    keys: Matrix<'a>,
    values: Matrix<'a>,
}

/// The same with the instructions to use.
pub(super) struct LanesOn<'a> {
    lanes: Lanes<'a>,
    isa: Isa,
}

impl<'a> Lanes<'a> {
    pub(super) fn new(keys: Matrix<'a>, values: Matrix<'a>) -> Lanes<'a> {
        Lanes { keys, values }
    }

    pub(super) fn on(self, isa: Isa) -> LanesOn<'a> {
        LanesOn { lanes: self, isa }
    }
}

impl Products for LanesOn<'_> {
    fn pack(&self, queries: Matrix<'_>, out: &mut Vec<[Tile; 2]>) {
        out.clear();
        out.resize(queries.columns.div_ceil(SIDE), [Tile::ZERO; 2]);
        for query in 0..queries.rows {
            let row = &queries.data[query * queries.row_step..][..queries.columns];
            for (component, value) in row.iter().enumerate() {
                out[component / SIDE][query / SIDE].0[component % SIDE][query % SIDE] = value.to_bits();
            }
        }
    }

    fn scores(&self, queries: &[[Tile; 2]], band: usize, out: &mut Square) {
        *out = [[Tile::ZERO; 2]; 2];
        let rows = band * BAND..self.lanes.keys.rows.min((band + 1) * BAND);
        add_product(self.isa, self.lanes.keys.part(rows), queries, out);
    }

    fn accumulate(&self, bands: Range<usize>, weights: &[Square], sums: &mut [Square]) {
        let rows = bands.start * BAND..self.lanes.values.rows.min(bands.end * BAND);
        let values = self.lanes.values.part(rows).transposed();
        add_product(self.isa, values, weights.as_flattened(), sums.as_flattened_mut());
    }

    fn turn(&self, tile: &mut Tile) {
        let before = *tile;
        for (row, words) in tile.0.iter_mut().enumerate() {
            *words = std::array::from_fn(|column| before.0[column][row]);
        }
    }
}

/// `out += a b`, where row `r` of `b` and `out` is row `r % 16` of the tiles `r / 16`.
fn add_product(isa: Isa, a: Matrix<'_>, b: &[[Tile; 2]], out: &mut [[Tile; 2]]) {
    let done = by_hand(isa, a, b, out);
    dispatch(isa, AddProduct { a, rows: done..a.rows, b, out });
}

/// The rows that are done by hand.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn by_hand(isa: Isa, a: Matrix<'_>, b: &[[Tile; 2]], out: &mut [[Tile; 2]]) -> usize {
    let Matrix { data, rows, columns, row_step, column_step } = a;
    crate::simd::add_rows_by_hand(isa, crate::simd::Factors { data, row_step, column_step, rows, columns }, b, out)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn by_hand(_: Isa, _: Matrix<'_>, _: &[[Tile; 2]], _: &mut [[Tile; 2]]) -> usize {
    0
}

/// Some rows of `out += a b`, in a shape that compilers turn into vectors.
struct AddProduct<'a> {
    a: Matrix<'a>,
    rows: Range<usize>,
    b: &'a [[Tile; 2]],
    out: &'a mut [[Tile; 2]],
}

impl Loop for AddProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let AddProduct { a, rows, b, out } = self;
        for row in rows {
            // A copy, which registers hold: compilers do not know that `out` and `b` are apart.
            let mut sums = out[row / SIDE].each_ref().map(|tile| tile.0[row % SIDE].map(f32::from_bits));
            for t in 0..a.columns {
                let factor = a.data[row * a.row_step + t * a.column_step];
                for (sums, b) in sums.iter_mut().zip(&b[t / SIDE]) {
                    for (sum, b) in sums.iter_mut().zip(&b.0[t % SIDE]) {
                        *sum += factor * f32::from_bits(*b);
                    }
                }
            }
            for (tile, sums) in out[row / SIDE].iter_mut().zip(sums) {
                tile.0[row % SIDE] = sums.map(f32::to_bits);
            }
        }
    }
}
