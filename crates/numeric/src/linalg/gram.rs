//! The sum of outer products of rows with themselves, `X^T X`, of which only the lower half is computed and kept:
//! the statistic of a layer's inputs that calibration needs.

use super::lower_blocks::LowerBlocks;
use super::matmul::{Matrix, MatrixMut, Threads, multiply};
use super::precision::Precision;
use super::tiled::{STRIP, Strip, add_outer};
use crate::simd::TileUnit;
use rayon::prelude::*;

/// Rows of a block: products of this height run at nearly the speed of whole ones, and the upper halves of the blocks on
/// the diagonal are a small part of the work.
pub(super) const SIDE: usize = 256;

/// Elements that are added at a time by one thread.
const ADDED: usize = 1 << 15;

/// The sum of `x^T x` over rows `x` (tokens) of some features: symmetric, its lower half in blocks of 256.
///
/// Sums of parts [merge](Self::merge) into the sum of the whole. Products are taken in f32 over the rows given at a time,
/// and added up in f32: 8192 tokens given 64 at a time come within 1e-6 of the exact sum, less than what inputs in bfloat16
/// have lost before. f64 would take twice the memory and twice the time.
///
/// In [`Precision::Bf16`] rows are rounded to bfloat16 first, which changes nothing where they come from a pass in that
/// precision. Products are exact then; where the CPU multiplies tiles (AMX, AVX-512 BF16), it sums them, 1024 rows at a
/// time, and numbers below the smallest normal one count as zero. 16384 tokens come within 2e-6 of the exact sum. It is
/// fastest with at least 1024 rows at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Gram {
    sums: LowerBlocks,
    tokens: u64,
    precision: Precision,
}

impl Gram {
    /// The sum of no rows, in f32.
    pub fn new(features: usize) -> Gram {
        Gram::with_precision(features, Precision::F32)
    }

    /// An empty sum whose rows will be taken in `precision`.
    pub fn with_precision(features: usize, precision: Precision) -> Gram {
        Gram { sums: LowerBlocks::zeros(features, SIDE), tokens: 0, precision }
    }

    /// The sum again that was taken apart into [`sums`](Self::sums) and [`tokens`](Self::tokens); `None` where the number
    /// of elements is not that of the features. More rows are taken in f32.
    pub fn from_parts(features: usize, tokens: u64, elements: &[f32]) -> Option<Gram> {
        let mut gram = Gram::new(features);
        if gram.sums.elements().len() != elements.len() {
            return None;
        }
        gram.sums.elements_mut().copy_from_slice(elements);
        Some(Gram { tokens, ..gram })
    }

    /// The sum over `tokens` rows that is known as a whole symmetric matrix, row by row; `None` where it is not square.
    pub fn of_matrix(features: usize, tokens: u64, matrix: &[f32]) -> Option<Gram> {
        let mut gram = Gram::new(features);
        if matrix.len() != features * features {
            return None;
        }
        for (row, values) in matrix.chunks(features.max(1)).enumerate() {
            gram.sums.row_mut(row).iter_mut().zip(values).for_each(|(element, value)| *element = *value);
        }
        Some(Gram { tokens, ..gram })
    }

    /// Adds rows of `features` elements that follow one another. All threads of the current rayon pool take part; the sum
    /// does not depend on their number.
    ///
    /// # Panics
    /// If the last row is incomplete.
    pub fn add(&mut self, rows: &[f32]) {
        let tokens = whole_rows(rows, self.features());
        match (self.precision, TileUnit::get()) {
            (Precision::F32, _) => self.add_products(rows),
            (Precision::Bf16, Some(unit)) => self.add_tiles(unit, rows),
            (Precision::Bf16, None) => self.add_products(&rounded(rows)),
        }
        self.tokens += tokens as u64;
    }

    fn add_products(&mut self, rows: &[f32]) {
        let features = self.features();
        let tokens = whole_rows(rows, features);
        let mut products = Vec::new();
        for place in self.sums.block_rows() {
            let height = place.rows.len();
            products.resize(height * place.columns, 0.0);
            let left = Matrix::new(rows.get(place.rows.start..).unwrap_or(&[]), tokens, height, features).transposed();
            let right = Matrix::new(rows, tokens, place.columns, features);
            let out = MatrixMut::new(&mut products, height, place.columns, place.columns);
            multiply(out, left, right, 1.0, Threads::Pool);
            add_to(self.sums.block_row_mut(&place), &products);
        }
    }

    fn add_tiles(&mut self, unit: TileUnit, rows: &[f32]) {
        let features = self.features();
        let rows = Matrix::new(rows, whole_rows(rows, features), features, features);
        let blocks = self.sums.split_mut().into_iter();
        let strips = blocks.flat_map(|(place, sums)| strips(place.rows.start, place.columns, sums));
        add_outer(unit, rows, rows, strips.collect());
    }

    /// Adds the sum of other rows of the same features.
    ///
    /// # Panics
    /// If the numbers of features differ.
    pub fn merge(&mut self, other: &Gram) {
        assert_eq!(self.features(), other.features(), "sums over different features");
        add_to(self.sums.elements_mut(), other.sums.elements());
        self.tokens += other.tokens;
    }

    /// Elements of a row.
    pub fn features(&self) -> usize {
        self.sums.size()
    }

    /// Rows that were added.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// The sums; above the diagonal, within the blocks on it, they are the mirror image of those below.
    pub fn sums(&self) -> &LowerBlocks {
        &self.sums
    }

    /// The sums of squares, one for each feature.
    pub fn diagonal(&self) -> Vec<f32> {
        (0..self.features()).map(|i| self.sums.symmetric(i, i)).collect()
    }
}

/// Rows of `columns` sums in strips, the first of which is that of feature `first`.
pub(super) fn strips(first: usize, columns: usize, sums: &mut [f32]) -> impl Iterator<Item = Strip<'_>> {
    let strips = sums.chunks_mut((STRIP * columns).max(1)).enumerate();
    strips.map(move |(index, totals)| Strip { first: first + index * STRIP, columns, totals })
}

/// The numbers as bfloat16.
pub(super) fn rounded(values: &[f32]) -> Vec<f32> {
    values.par_iter().map(|value| Precision::Bf16.round(*value)).collect()
}

pub(super) fn whole_rows(rows: &[f32], features: usize) -> usize {
    assert!(rows.is_empty() || (features > 0 && rows.len().is_multiple_of(features)), "rows of {features} features");
    rows.len().checked_div(features).unwrap_or(0)
}

pub(super) fn add_to(sums: &mut [f32], more: &[f32]) {
    sums.par_chunks_mut(ADDED).zip(more.par_chunks(ADDED)).for_each(|(sums, more)| {
        sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 37 + seed * 11) % 19) as f32 * 0.25 - 2.0).collect()
    }

    /// The definition; the values make every sum exact.
    fn outer(x: &[f32], y: &[f32], features: usize, i: usize, j: usize) -> f32 {
        x.chunks(features).zip(y.chunks(features)).map(|(x, y)| x[i] * y[j]).sum()
    }

    #[test]
    fn gram_sums_match_the_definition_at_odd_sizes() {
        for (tokens, features) in [(0, 3), (1, 1), (7, 5), (33, 513), (20, 1100)] {
            let x = rows(tokens * features, 1);
            let mut gram = Gram::new(features);
            gram.add(&x);
            assert_eq!((gram.tokens(), gram.features()), (tokens as u64, features));
            for i in (0..features).step_by(7) {
                for j in (0..features).step_by(3) {
                    assert_eq!(gram.sums().symmetric(i, j), outer(&x, &x, features, i, j), "{features}: {i} {j}");
                }
            }
        }
    }

    #[test]
    fn gram_parts_merge_and_round_trip() {
        let x = rows(30 * 600, 3);
        let (mut whole, mut first, mut second) = (Gram::new(600), Gram::new(600), Gram::new(600));
        whole.add(&x);
        first.add(&x[..12 * 600]);
        second.add(&x[12 * 600..]);
        first.merge(&second);
        assert_eq!(first, whole);
        assert_eq!(Gram::from_parts(600, 30, whole.sums().elements()), Some(whole.clone()));
        assert_eq!(Gram::from_parts(601, 30, whole.sums().elements()), None);
    }

    /// The rows rounded to bfloat16, and summed with all that multiplies tiles and without.
    fn in_bf16(x: &[f32], features: usize) -> Vec<Gram> {
        let gram = Gram::with_precision(features, Precision::Bf16);
        let mut plain = gram.clone();
        plain.add_products(&rounded(x));
        let with = |unit| {
            let mut tiles = gram.clone();
            tiles.add_tiles(unit, x);
            tiles
        };
        TileUnit::available().into_iter().map(with).chain([plain]).collect()
    }

    #[test]
    fn bf16_gram_sums_match_the_definition_at_odd_sizes() {
        for (tokens, features) in [(0, 3), (1, 1), (7, 5), (33, 513), (20, 1100), (1100, 70)] {
            let x = rows(tokens * features, 1);
            for gram in in_bf16(&x, features) {
                for i in (0..features).step_by(7) {
                    for j in (0..features).step_by(3) {
                        assert_eq!(gram.sums().symmetric(i, j), outer(&x, &x, features, i, j), "{features}: {i} {j}");
                    }
                }
            }
        }
    }

    #[test]
    fn bf16_gram_rounds_rows_and_is_symmetric() {
        let (features, tokens) = (70, 1000);
        let x: Vec<f32> = (0..features * tokens).map(|i| (i as f32 * 0.7).sin()).collect();
        let exact: Vec<f64> = rounded(&x).into_iter().map(f64::from).collect();
        for gram in in_bf16(&x, features) {
            for (i, j) in (0..features * features).map(|e| (e / features, e % features)) {
                let products = exact.chunks(features).map(|x| (x[i] * x[j], (x[i] * x[j]).abs()));
                let (sum, size) = products.fold((0.0, 0.0), |(sum, size), (p, s)| (sum + p, size + s));
                // Products without tiles may sum all rows one after the other, which depends on the caches.
                assert!((f64::from(gram.sums().elements()[i * features + j]) - sum).abs() < 1e-5 * size);
                assert_eq!(gram.sums().elements()[i * features + j], gram.sums().elements()[j * features + i]);
            }
        }
    }

    #[test]
    fn gram_does_not_depend_on_the_number_of_threads() {
        let x: Vec<f32> = (0..70 * 700).map(|i| (i as f32 * 0.37).sin()).collect();
        for precision in [Precision::F32, Precision::Bf16] {
            let sums = [1, 2, 5].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut gram = Gram::with_precision(700, precision);
                pool.install(|| gram.add(&x));
                gram
            });
            assert!(sums.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }

    /// The maximum relative error of a sum of 16384 rows, added in chunks of this size.
    fn error(precision: Precision, at_once: usize) -> f64 {
        let (features, tokens) = (4, 16384);
        let x: Vec<f32> = (0..features * tokens).map(|i| precision.round(1.0 + (i as f32 * 0.7).sin())).collect();
        let mut gram = Gram::with_precision(features, precision);
        x.chunks(features * at_once).for_each(|rows| gram.add(rows));
        let wide: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
        let exact = |i: usize, j: usize| wide.chunks(features).map(|x| x[i] * x[j]).sum::<f64>();
        let error = |(i, j)| (f64::from(gram.sums().symmetric(i, j)) / exact(i, j) - 1.0).abs();
        (0..features).flat_map(|i| (0..=i).map(move |j| (i, j))).map(error).fold(0.0, f64::max)
    }

    #[test]
    fn sums_of_many_rows_stay_accurate() {
        for precision in [Precision::F32, Precision::Bf16] {
            for at_once in [64, 512, 2048, 16384] {
                assert!(error(precision, at_once) < 2e-6, "{precision:?} {at_once}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "rows of 3 features")]
    fn partial_row_is_refused() {
        Gram::new(3).add(&[0.0; 5]);
    }
}
