//! The sum of outer products of pairs of rows, `X^T Y`: how the inputs of a layer go with others of the same tokens. Not
//! that of rows with themselves, which is symmetric, in `gram.rs`.

use super::gram::{SIDE, add_to, rounded, strips, whole_rows};
use super::matmul::{Matrix, MatrixMut, Threads, multiply};
use super::precision::Precision;
use super::tiled::add_outer;
use crate::simd::TileUnit;

/// The sum of `x^T y` over pairs of rows: element `(i, j)`, row-major, is the sum of `x_i y_j`. Precisions are those of
/// [`Gram`](super::Gram).
#[derive(Clone, Debug, PartialEq)]
pub struct CrossGram {
    features: usize,
    sums: Vec<f32>,
    precision: Precision,
}

impl CrossGram {
    /// The sum of no rows, in f32.
    pub fn new(features: usize) -> CrossGram {
        CrossGram::with_precision(features, Precision::F32)
    }

    /// An empty sum whose rows will be taken in `precision`.
    pub fn with_precision(features: usize, precision: Precision) -> CrossGram {
        CrossGram { features, sums: vec![0.0; features * features], precision }
    }

    /// The sum again whose [`sums`](Self::sums) were kept; `None` where their number is not that of the features. More
    /// rows are taken in f32.
    pub fn from_parts(features: usize, sums: Vec<f32>) -> Option<CrossGram> {
        let precision = Precision::F32;
        (Some(sums.len()) == features.checked_mul(features)).then_some(CrossGram { features, sums, precision })
    }

    /// Adds pairs of rows of `features` elements that follow one another. All threads of the current rayon pool take part;
    /// the sum does not depend on their number.
    ///
    /// # Panics
    /// If the numbers of rows differ, or the last row is incomplete.
    pub fn add(&mut self, x: &[f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "rows come in pairs");
        match (self.precision, TileUnit::get()) {
            (Precision::F32, _) => self.add_products(x, y),
            (Precision::Bf16, Some(unit)) => self.add_tiles(unit, x, y),
            (Precision::Bf16, None) => self.add_products(&rounded(x), &rounded(y)),
        }
    }

    fn add_products(&mut self, x: &[f32], y: &[f32]) {
        let features = self.features;
        let tokens = whole_rows(x, features);
        let mut products = Vec::new();
        for (block, sums) in self.sums.chunks_mut((SIDE * features).max(1)).enumerate() {
            let height = sums.len() / features;
            products.resize(sums.len(), 0.0);
            let left = Matrix::new(x.get(block * SIDE..).unwrap_or(&[]), tokens, height, features).transposed();
            let out = MatrixMut::new(&mut products, height, features, features);
            multiply(out, left, Matrix::new(y, tokens, features, features), 1.0, Threads::Pool);
            add_to(sums, &products);
        }
    }

    fn add_tiles(&mut self, unit: TileUnit, x: &[f32], y: &[f32]) {
        let features = self.features;
        let matrix = |rows| Matrix::new(rows, whole_rows(rows, features), features, features);
        add_outer(unit, matrix(x), matrix(y), strips(0, features, &mut self.sums).collect());
    }

    /// Adds the sum of other pairs of the same features.
    ///
    /// # Panics
    /// If the numbers of features differ.
    pub fn merge(&mut self, other: &CrossGram) {
        assert_eq!(self.features, other.features, "sums over different features");
        add_to(&mut self.sums, &other.sums);
    }

    /// Elements of a row.
    pub fn features(&self) -> usize {
        self.features
    }

    /// All sums, row by row.
    pub fn sums(&self) -> &[f32] {
        &self.sums
    }

    /// Row `row` of the sums.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.sums[row * self.features..(row + 1) * self.features]
    }
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
    fn cross_sums_match_the_definition() {
        for (tokens, features) in [(1, 1), (7, 5), (9, 600)] {
            let (x, y) = (rows(tokens * features, 1), rows(tokens * features, 2));
            let mut cross = CrossGram::new(features);
            cross.add(&x, &y);
            for i in (0..features).step_by(7) {
                for (j, sum) in cross.row(i).iter().enumerate() {
                    assert_eq!(*sum, outer(&x, &y, features, i, j));
                }
            }
        }
    }

    #[test]
    fn cross_sums_merge_and_round_trip() {
        let (x, y) = (rows(9 * 20, 1), rows(9 * 20, 2));
        let (mut whole, mut first, mut second) = (CrossGram::new(20), CrossGram::new(20), CrossGram::new(20));
        whole.add(&x, &y);
        first.add(&x[..80], &y[..80]);
        second.add(&x[80..], &y[80..]);
        first.merge(&second);
        assert_eq!(first, whole);
        assert_eq!(CrossGram::from_parts(20, whole.sums().to_vec()), Some(whole.clone()));
        assert_eq!(CrossGram::from_parts(21, whole.sums().to_vec()), None);
    }

    #[test]
    fn precisions_agree_on_exact_values() {
        for (tokens, features) in [(1, 1), (7, 5), (600, 200)] {
            let (x, y) = (rows(tokens * features, 1), rows(tokens * features, 2));
            let mut plain = CrossGram::new(features);
            let mut bf16 = CrossGram::with_precision(features, Precision::Bf16);
            plain.add(&x, &y);
            bf16.add(&x, &y);
            assert_eq!(bf16.sums(), plain.sums());
        }
    }
}
