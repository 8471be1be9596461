//! Products of rows in tiles of bfloat16: that of a linear layer, whose weight is packed piece by piece, and that with a matrix
//! whose rows are the depth. Threads share the rows of `x`. Each sum runs over the whole depth in one order, whichever thread
//! takes it.

mod outer;
mod pack;

use super::linear::{Finish, Layer};
use super::matmul::{Matrix, MatrixMut};
use crate::simd::{Isa, Loop, SIDE, Start, Tile, TileUnit, Tiles, dispatch};
use pack::pack_elements;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use outer::pack_right;
pub(super) use outer::{STRIP, Strip, add_outer};
pub(super) use pack::{Terms, pack_values};

/// Rows of `x` or of the weight that are multiplied at a time: two tiles.
const BAND: usize = 2 * SIDE;
/// Depth of a tile.
const DEPTH: usize = 2 * SIDE;
/// Elements of a weight that are packed at a time: most layers whole, since `x` is packed for each panel.
const PANEL: usize = 12 << 20;
/// Pairs of tiles of a weight, 768 KB, that a thread multiplies with all its rows of `x` before the next.
const PAIRS: usize = 384;
/// Bands of `x`, at least, that a thread multiplies with them: so few weights come from far then that they do not hold it up.
const BANDS: usize = 8;

/// Tiles of finished products, for reuse: memory that is new to a process costs more than the data written
/// to it.
static PACKED: Mutex<Vec<Vec<[Tile; 2]>>> = Mutex::new(Vec::new());
/// So many are kept, each as large as the largest panel that came to it: more products seldom run side by side.
const KEPT: usize = 2;

/// Lends pairs of tiles with arbitrary contents.
fn with_packed<R>(count: usize, work: impl FnOnce(&mut [[Tile; 2]]) -> R) -> R {
    let kept = || PACKED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut packed = kept().pop().unwrap_or_default();
    // Never shrinks: tiles beyond would be allocated again for the next weight.
    packed.resize(count.max(packed.len()), [Tile::ZERO; 2]);
    let result = work(&mut packed[..count]);
    let mut kept = kept();
    if kept.len() < KEPT {
        kept.push(packed);
    }
    result
}

/// `out = x W^T + b`, as [`super::linear()`] says.
pub(super) fn linear(unit: TileUnit, out: MatrixMut<'_>, x: Matrix<'_>, layer: Layer<'_>, terms: Terms) {
    product(unit, out, x, Right::Layer(layer), terms);
}

/// `out = x y`, both rounded to bfloat16, sums in `f32`. The rows of both are contiguous.
pub(super) fn rows(unit: TileUnit, out: MatrixMut<'_>, x: Matrix<'_>, y: Matrix<'_>) {
    product(unit, out, x, Right::Rows(y), Terms::Rounded);
}

/// What rows are multiplied by.
#[derive(Clone, Copy)]
enum Right<'a> {
    /// A weight, whose rows are columns of the result.
    Layer(Layer<'a>),
    /// A matrix, whose rows are the depth.
    Rows(Matrix<'a>),
}

impl<'a> Right<'a> {
    /// Packs some columns of the result; the last band is filled up with zeros.
    fn pack(self, unit: TileUnit, features: Range<usize>, steps: usize, out: &mut [[Tile; 2]]) {
        match self {
            Right::Layer(layer) => pack_weight(unit, layer, features, steps, out),
            Right::Rows(rows) => pack_right(rows, features.start, steps, out),
        }
    }

    /// The operation on the sums of some columns.
    fn finish(self, features: Range<usize>) -> Finish<'a> {
        match self {
            Right::Layer(layer) => layer.finish(features),
            Right::Rows(_) => Finish::NOTHING,
        }
    }
}

fn product(unit: TileUnit, out: MatrixMut<'_>, x: Matrix<'_>, right: Right<'_>, terms: Terms) {
    let MatrixMut { data, rows: tokens, columns: outputs, row_step } = out;
    if tokens == 0 || outputs == 0 {
        return;
    }
    let steps = x.columns.div_ceil(DEPTH).max(1);
    let share = share(tokens, steps, terms);
    let panel = (PANEL / x.columns.max(1)).next_multiple_of(BAND).min(outputs);
    let data = &mut data[..(tokens - 1) * row_step + outputs];
    with_packed(panel.div_ceil(BAND) * steps, |packed| {
        for start in (0..outputs).step_by(panel) {
            let features = start..(start + panel).min(outputs);
            let weights = &mut packed[..features.len().div_ceil(BAND) * steps];
            right.pack(unit, features.clone(), steps, weights);
            let task = ProductTask { unit, x, terms, steps, weights, finish: right.finish(features.clone()), features };
            let shares = data.par_chunks_mut(share * row_step).enumerate();
            shares.for_each_init(Vec::new, |pairs, (index, out)| task.run(index * share, pairs, out, row_step));
        }
    });
}

/// Rows that a thread takes at a time, fewer where there would be too few shares for all. Of several terms, whose bands are larger
/// than those of weights, what stays in its cache.
fn share(tokens: usize, steps: usize, terms: Terms) -> usize {
    let fitting = match terms {
        Terms::Rounded => (2 * PAIRS / steps).max(BANDS),
        Terms::Exact => (PAIRS / (steps * terms.count())).max(1),
    };
    let bands = tokens.div_ceil(BAND);
    fitting.min(bands.div_ceil(2 * rayon::current_num_threads())).max(1) * BAND
}

/// Packs rows of a weight; the last band is filled up with zeros.
fn pack_weight(unit: TileUnit, layer: Layer<'_>, features: Range<usize>, steps: usize, out: &mut [[Tile; 2]]) {
    out.par_chunks_mut(steps.max(1)).enumerate().for_each_init(Vec::new, |values, (band, pairs)| {
        let start = features.start + band * BAND;
        let rows = start..(start + BAND).min(features.end);
        pack_elements(layer.weight.elements(rows, values), layer.weight.columns(), pairs);
        // A right operand has the depth in its rows.
        pairs.iter_mut().flatten().for_each(|tile| unit.transpose(tile));
    });
}

/// The product with some output features.
struct ProductTask<'a> {
    unit: TileUnit,
    x: Matrix<'a>,
    terms: Terms,
    steps: usize,
    weights: &'a [[Tile; 2]],
    features: Range<usize>,
    finish: Finish<'a>,
}

impl ProductTask<'_> {
    /// Rows of `x` from `first` on, as many as `out` has.
    fn run(&self, first: usize, pairs: &mut Vec<[Tile; 2]>, out: &mut [f32], row_step: usize) {
        let band_pairs = self.steps * self.terms.count();
        let tokens = out.len().div_ceil(row_step);
        pairs.resize(tokens.div_ceil(BAND) * band_pairs, [Tile::ZERO; 2]);
        for (band, pairs) in pairs.chunks_mut(band_pairs.max(1)).enumerate() {
            let rows = first + band * BAND..first + tokens.min((band + 1) * BAND);
            pack_values(self.x, rows, self.terms, pairs);
        }
        self.unit.with_tiles(|tiles| self.multiply(tiles, pairs, out, row_step));
    }

    /// By groups of weights that stay in the cache, so that neighbouring columns of a row are written soon after each other.
    fn multiply(&self, tiles: &Tiles, x: &[[Tile; 2]], out: &mut [f32], row_step: usize) {
        let group = (PAIRS / self.steps).max(1);
        for (index, weights) in self.weights.chunks(group * self.steps).enumerate() {
            let bands = x.chunks(self.steps * self.terms.count());
            for (x, rows) in bands.zip(out.chunks_mut(BAND * row_step)) {
                self.multiply_band(tiles, index * group * BAND, weights, x, rows, row_step);
            }
        }
    }

    /// One band of `x` with the weights from feature `first` of these on.
    fn multiply_band(
        &self,
        tiles: &Tiles,
        first: usize,
        weights: &[[Tile; 2]],
        x: &[[Tile; 2]],
        rows: &mut [f32],
        row_step: usize,
    ) {
        let mut sums = [[Tile::ZERO; 2]; 2];
        for (index, weights) in weights.chunks(self.steps).enumerate() {
            let start = first + index * BAND;
            let columns = start..(start + BAND).min(self.features.len());
            tiles.multiply(x, weights, Start::Zero, &mut sums);
            let (finish, width) = (self.finish.part(columns.clone()), columns.len());
            let rows = &mut rows[self.features.start + start..];
            dispatch(Isa::best(), Write { sums: &sums, finish, width, rows, row_step });
        }
    }
}

/// Writes sums, rows of `x` in rows and features in words, to the first columns of some rows.
struct Write<'a> {
    sums: &'a [[Tile; 2]; 2],
    finish: Finish<'a>,
    width: usize,
    rows: &'a mut [f32],
    row_step: usize,
}

impl Loop for Write<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Write { sums, finish, width, rows, row_step } = self;
        for (index, row) in rows.chunks_mut(row_step).enumerate() {
            let sums = sums[index / SIDE].each_ref().map(|tile| &tile.0[index % SIDE]);
            // A length that the compiler knows lets it do without a loop.
            match row.first_chunk_mut::<BAND>().filter(|_| width == BAND) {
                Some(row) => write_row(finish, sums, row),
                None => write_row(finish, sums, &mut row[..width]),
            }
        }
    }
}

#[inline(always)]
fn write_row(finish: Finish<'_>, [first, second]: [&[u32; SIDE]; 2], row: &mut [f32]) {
    row.iter_mut().zip(first.iter().chain(second)).for_each(|(value, word)| *value = f32::from_bits(*word));
    finish.row(row);
}
