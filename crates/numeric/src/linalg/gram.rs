//! Sums of outer products of rows: `X^T X`, of which only the lower half is computed and kept, and `X^T Y`. What
//! calibration needs to know of a layer's inputs. Not what is made of them.

use super::lower_blocks::LowerBlocks;
use super::matmul::{Matrix, MatrixMut, Threads, multiply};
use rayon::prelude::*;

/// Rows of a block: products of this height run at nearly the speed of whole ones, and the upper halves of the blocks on
/// the diagonal are a small part of the work.
const SIDE: usize = 256;

/// Elements that are added at a time by one thread.
const ADDED: usize = 1 << 15;

/// The sum of `x^T x` over rows `x` (tokens) of some features: symmetric, its lower half in blocks of 256.
///
/// Sums of parts [merge](Self::merge) into the sum of the whole. Products are taken in f32 over the rows given at a time,
/// and added up in f32: 8192 tokens given 64 at a time come within 1e-6 of the exact sum, less than what inputs in bfloat16
/// have lost before. f64 would take twice the memory and twice the time.
#[derive(Clone, Debug, PartialEq)]
pub struct Gram {
    sums: LowerBlocks,
    tokens: u64,
}

impl Gram {
    /// The sum of no rows.
    pub fn new(features: usize) -> Gram {
        Gram { sums: LowerBlocks::zeros(features, SIDE), tokens: 0 }
    }

    /// The sum again that was taken apart into [`sums`](Self::sums) and [`tokens`](Self::tokens); `None` where the number
    /// of elements is not that of the features.
    pub fn from_parts(features: usize, tokens: u64, elements: &[f32]) -> Option<Gram> {
        let mut sums = LowerBlocks::zeros(features, SIDE);
        if sums.elements().len() != elements.len() {
            return None;
        }
        sums.elements_mut().copy_from_slice(elements);
        Some(Gram { sums, tokens })
    }

    /// Adds rows of `features` elements that follow one another. All threads of the current rayon pool take part; the sum
    /// does not depend on their number.
    ///
    /// # Panics
    /// If the last row is not whole.
    pub fn add(&mut self, rows: &[f32]) {
        let features = self.sums.size();
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
        self.tokens += tokens as u64;
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

/// The sum of `x^T y` over pairs of rows: element `(i, j)`, row-major, is the sum of `x_i y_j`.
#[derive(Clone, Debug, PartialEq)]
pub struct CrossGram {
    features: usize,
    sums: Vec<f32>,
}

impl CrossGram {
    /// The sum of no rows.
    pub fn new(features: usize) -> CrossGram {
        CrossGram { features, sums: vec![0.0; features * features] }
    }

    /// The sum again whose [`sums`](Self::sums) were kept; `None` where their number is not that of the features.
    pub fn from_parts(features: usize, sums: Vec<f32>) -> Option<CrossGram> {
        (Some(sums.len()) == features.checked_mul(features)).then_some(CrossGram { features, sums })
    }

    /// Adds pairs of rows of `features` elements that follow one another. All threads of the current rayon pool take part;
    /// the sum does not depend on their number.
    ///
    /// # Panics
    /// If there are not as many rows of both, or a last row is not whole.
    pub fn add(&mut self, x: &[f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "rows come in pairs");
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

fn whole_rows(rows: &[f32], features: usize) -> usize {
    assert!(rows.is_empty() || (features > 0 && rows.len().is_multiple_of(features)), "rows of {features} features");
    rows.len().checked_div(features).unwrap_or(0)
}

fn add_to(sums: &mut [f32], more: &[f32]) {
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
    fn sums_equal_the_definition_at_odd_sizes() {
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
    fn cross_sums_equal_the_definition() {
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
    fn cross_sums_merge_and_come_back_from_their_elements() {
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
    fn parts_merge_into_the_whole_and_come_back_from_their_elements() {
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

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        let x: Vec<f32> = (0..70 * 700).map(|i| (i as f32 * 0.37).sin()).collect();
        let sums = [1, 2, 5].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut gram = Gram::new(700);
            pool.install(|| gram.add(&x));
            gram
        });
        assert!(sums.windows(2).all(|pair| pair[0] == pair[1]));
    }

    #[test]
    fn many_small_sums_stay_near_the_exact_one() {
        let (features, tokens) = (4, 8192);
        let x: Vec<f32> = (0..features * tokens).map(|i| 1.0 + (i as f32 * 0.7).sin()).collect();
        let mut gram = Gram::new(features);
        x.chunks(features * 64).for_each(|rows| gram.add(rows));
        let wide: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
        for i in 0..features {
            for j in 0..=i {
                let exact: f64 = wide.chunks(features).map(|x| x[i] * x[j]).sum();
                assert!((f64::from(gram.sums().symmetric(i, j)) / exact - 1.0).abs() < 1e-6);
            }
        }
    }

    #[test]
    #[should_panic(expected = "rows of 3 features")]
    fn a_broken_row_is_refused() {
        Gram::new(3).add(&[0.0; 5]);
    }
}
