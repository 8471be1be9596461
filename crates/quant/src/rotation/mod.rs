//! Rotations of channels: orthogonal matrices that spread outliers of one channel over all channels, so that one scale fits.
//! Which tensors of a model are rotated, is outside this module.
//!
//! Kinds:
//!
//! * [`Rotation::hadamard`]: random signs times a Hadamard matrix, all of whose elements are of one size. What RMSNorm gives
//!   commutes with it.
//! * [`Rotation::mean_keeping`]: a matrix `R` with `1 R = 1`, so that it leaves the mean over the channels as it is. LayerNorm, which
//!   subtracts that mean, commutes with it too: `mean(x R) = x R 1 / n = x 1 / n`.
//! * [`Rotation::sylvester`]: the Hadamard matrix that engines compute while a model runs, without signs. It is its own inverse.
//! * [`Rotation::of_matrix`]: the matrix of a checkpoint.
//!
//! The first three are Kronecker products of small matrices, never stored as a whole: a vector of `n` channels takes `n` times the sum of
//! their sizes. A [`BlockDiagonal`] that is learned ([`RotationDescent`]) may follow one. Sources: Ashkboos et al., QuaRot:
//! Outlier-Free 4-Bit Inference in Rotated LLMs, arXiv 2404.00456; Paley, On Orthogonal Matrices, 1933.

mod block_diagonal;
mod descent;
mod factor;
mod hadamard;
mod orthogonal;
mod place;
mod rotate;

pub use block_diagonal::BlockDiagonal;
pub use descent::{DescentState, RotationDescent};
pub use place::{RotationPlace, UnknownRotationPlace};
pub use rotate::{NAME, Rotate, row};

use std::fmt;
use std::sync::Arc;

use crate::random::SplitMix64;
use factor::Factor;
use hadamard::paley;
use orthogonal::{flattest_mean_keeping, random_orthogonal};

/// The largest matrix made for channel counts without a better one: its cost is cubic.
const LARGEST: usize = 1024;
/// The name of rotations that keep the mean.
const MEAN_KEEPING: &str = "mean-keeping";
/// More channels than this no model has.
const MOST: usize = 1 << 20;

/// An orthogonal matrix over channels: vectors are rows, and are multiplied by it from the right.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    name: &'static str,
    order: Vec<usize>,
    signs: Vec<f64>,
    factors: Vec<Factor>,
    /// A matrix behind them, each of whose groups of channels they rotate.
    learned: Option<Arc<BlockDiagonal>>,
}

impl Rotation {
    /// Random signs and a Hadamard matrix: a power of two, times an order of Paley's constructions where it takes one. Where there is
    /// none, an orthogonal matrix drawn at random takes its place. `None` where that would be too large, and for no channels.
    pub fn hadamard(channels: usize, seed: u64) -> Option<Self> {
        let twos = (1..=MOST).contains(&channels).then(|| channels.trailing_zeros())?;
        let odd = channels >> twos;
        let mut random = SplitMix64::new(seed);
        let signs = (0..channels).map(|_| if random.draw() >> 63 == 0 { 1.0 } else { -1.0 }).collect();
        let of_order =
            |taken: u32| Some((taken, Some(odd << taken).filter(|order| *order <= LARGEST).and_then(paley)?));
        let (taken, first, name) = match (2..=twos).find_map(of_order).filter(|_| odd > 1) {
            _ if odd == 1 => (0, None, "Hadamard"),
            Some((taken, factor)) => (taken, Some(factor), "Hadamard"),
            None if odd > LARGEST => return None,
            None => (0, Some(random_orthogonal(odd, &mut random)), "orthogonal"),
        };
        let factors = first.into_iter().chain((taken..twos).map(|_| hadamard_of_two())).collect();
        Some(Self { name, order: (0..channels).collect(), signs, factors, learned: None })
    }

    /// A random order and a matrix that keeps the mean over the channels. The regular Hadamard matrix of order four, each of
    /// whose rows has one negative element, keeps it, and so do its Kronecker powers; what is left of the number of channels
    /// gets the flattest of some matrices drawn at random. `None` where that would be too large, and for no channels.
    pub fn mean_keeping(channels: usize, seed: u64) -> Option<Self> {
        let fours = (1..=MOST).contains(&channels).then(|| channels.trailing_zeros() / 2)?;
        // Of order two there is nothing but the identity and the exchange of both.
        let fours = if channels >> (2 * fours) == 2 { fours.saturating_sub(1) } else { fours };
        let rest = channels >> (2 * fours);
        let mut random = SplitMix64::new(seed);
        let mut order: Vec<usize> = (0..channels).collect();
        random.shuffle(&mut order);
        let first = match rest {
            1 => None,
            2..=LARGEST => Some(flattest_mean_keeping(rest, &mut random)),
            _ => return None,
        };
        let four = Factor::of(4, |row, column| if row == column { -0.5 } else { 0.5 });
        let factors = first.into_iter().chain((0..fours).map(|_| four.clone())).collect();
        Some(Self { name: MEAN_KEEPING, order, signs: vec![1.0; channels], factors, learned: None })
    }

    /// The same rotation of each group of channels, followed by a learned matrix of all; `None` where groups do not divide its channels.
    pub fn followed_by(self, learned: Arc<BlockDiagonal>) -> Option<Self> {
        let fits = learned.channels().is_multiple_of(self.order.len());
        fits.then_some(Self { learned: Some(learned), ..self })
    }

    /// Returns whether it leaves the mean over its channels as it is.
    pub fn keeps_mean(&self) -> bool {
        self.name == MEAN_KEEPING
    }

    /// Sylvester's Hadamard matrix, divided by the root of its order: `(-1)^k / sqrt(n)`, where `k` is the number of ones that the binary
    /// numbers of row and column have in common. `None` unless the number of channels is a power of two.
    pub fn sylvester(channels: usize) -> Option<Self> {
        if !channels.is_power_of_two() || channels > MOST {
            return None;
        }
        let factors = (0..channels.trailing_zeros()).map(|_| hadamard_of_two()).collect();
        Some(Self {
            name: "Hadamard",
            order: (0..channels).collect(),
            signs: vec![1.0; channels],
            factors,
            learned: None,
        })
    }

    /// A square matrix, row by row; `None` where the number of values is not the square of that of channels. What it is as a product with
    /// Hadamard matrices of order two is found, so that it is applied as fast as one that is made here. Need not be orthogonal.
    pub fn of_matrix(channels: usize, values: Vec<f64>) -> Option<Self> {
        if !(1..=MOST).contains(&channels) || channels.checked_mul(channels) != Some(values.len()) {
            return None;
        }
        let (mut first, mut twos) = (Factor::new(channels, values), 0);
        while let Some(rest) = first.without_hadamard() {
            (first, twos) = (rest, twos + 1);
        }
        let factors = std::iter::once(first).chain((0..twos).map(|_| hadamard_of_two())).collect();
        Some(Self {
            name: "matrix",
            order: (0..channels).collect(),
            signs: vec![1.0; channels],
            factors,
            learned: None,
        })
    }

    /// Returns whether it is [`Rotation::sylvester`].
    pub fn is_sylvester(&self) -> bool {
        Self::sylvester(self.channels()).as_ref() == Some(self)
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.learned.as_ref().map_or(self.order.len(), |learned| learned.channels())
    }

    /// Multiplies vectors of all channels, which follow one another. `scratch` may hold anything.
    pub fn apply(&self, vectors: &mut [f64], scratch: &mut Vec<f64>) {
        vectors.chunks_exact_mut(self.order.len()).for_each(|vector| self.apply_fixed(vector, 1, scratch));
        if let Some(learned) = &self.learned {
            learned.apply_to_rows(vectors, scratch);
        }
    }

    /// Multiplies a vector of all channels by the transposed matrix: the inverse of an orthogonal one. `scratch` may hold anything.
    pub fn apply_transposed(&self, vector: &mut [f64], scratch: &mut Vec<f64>) {
        let mut stride = vector.len();
        for factor in &self.factors {
            stride /= factor.size();
            factor.transposed().apply(vector, stride);
        }
        scratch.clear();
        scratch.extend_from_slice(vector);
        for ((to, sign), value) in self.order.iter().zip(&self.signs).zip(&*scratch) {
            vector[*to] = value * sign;
        }
    }

    /// Multiplies so many vectors at once, whose elements of one channel stand side by side.
    pub fn apply_side_by_side(&self, vectors: &mut [f64], count: usize, scratch: &mut Vec<f64>) {
        if count == 0 {
            return;
        }
        let groups = vectors.chunks_exact_mut(self.order.len() * count);
        groups.for_each(|group| self.apply_fixed(group, count, scratch));
        if let Some(learned) = &self.learned {
            learned.apply_side_by_side(vectors, count, scratch);
        }
    }

    /// The same of the channels of one group, without what was learned.
    fn apply_fixed(&self, vectors: &mut [f64], count: usize, scratch: &mut Vec<f64>) {
        scratch.clear();
        for (&from, sign) in self.order.iter().zip(&self.signs) {
            scratch.extend(vectors[from * count..][..count].iter().map(|value| value * sign));
        }
        vectors.copy_from_slice(scratch);
        let mut stride = vectors.len();
        for factor in &self.factors {
            stride /= factor.size();
            factor.apply(vectors, stride);
        }
    }
}

/// The Hadamard matrix of order two, normalized.
fn hadamard_of_two() -> Factor {
    Factor::new(2, vec![1.0, 1.0, 1.0, -1.0]).normalized()
}

impl fmt::Display for Rotation {
    /// The kind, and the orders of its factors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let orders: Vec<String> = self.factors.iter().map(|factor| factor.size().to_string()).collect();
        let learned = if self.learned.is_some() { ", learned" } else { "" };
        write!(f, "{} {}{learned}", self.name, orders.join(" x "))
    }
}

/// The largest difference of two lists of numbers, element by element.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of the matrix.
    fn dense(rotation: &Rotation) -> Vec<Vec<f64>> {
        let channels = rotation.channels();
        let unit = |row: usize| (0..channels).map(|column| f64::from(u8::from(row == column))).collect();
        let mut rows: Vec<Vec<f64>> = (0..channels).map(unit).collect();
        rows.iter_mut().for_each(|row| rotation.apply(row, &mut Vec::new()));
        rows
    }

    fn is_orthogonal(rows: &[Vec<f64>]) -> bool {
        let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let right = |i: usize, j: usize| (product(&rows[i], &rows[j]) - f64::from(u8::from(i == j))).abs() < 1e-12;
        (0..rows.len()).all(|i| (0..rows.len()).all(|j| right(i, j)))
    }

    /// The largest element, where 1 is that of a Hadamard matrix.
    fn peak(rows: &[Vec<f64>]) -> f64 {
        rows.iter().flatten().fold(0f64, |m, v| m.max(v.abs())) * (rows.len() as f64).sqrt()
    }

    #[test]
    fn hadamard_matrices_are_orthogonal_and_flat_where_they_exist() {
        for channels in [1, 2, 4, 12, 20, 24, 28, 36, 48, 64, 76, 96, 104, 128, 768] {
            let rows = dense(&Rotation::hadamard(channels, 7).unwrap());
            assert!(is_orthogonal(&rows) && peak(&rows) < 1.0 + 1e-9, "{channels}");
        }
        for channels in [3, 6, 50, 105] {
            assert!(is_orthogonal(&dense(&Rotation::hadamard(channels, 7).unwrap())), "{channels}");
        }
        assert_eq!(Rotation::hadamard(48, 1).unwrap().to_string(), "Hadamard 12 x 2 x 2");
    }

    #[test]
    fn mean_keeping_rotation_keeps_means_and_spreads_outliers() {
        for (channels, most) in [
            (1, 1.0),
            (4, 1.0),
            (16, 1.0),
            (64, 1.0),
            (256, 1.0),
            (48, 1.2),
            (192, 1.2),
            (128, 2.2),
            (96, 2.2),
            (30, 3.8),
        ] {
            let rows = dense(&Rotation::mean_keeping(channels, 7).unwrap());
            let sums = (0..channels).map(|column| rows.iter().map(|row| row[column]).sum::<f64>());
            assert!(is_orthogonal(&rows) && sums.into_iter().all(|sum| (sum - 1.0).abs() < 1e-12), "{channels}");
            assert!(peak(&rows) <= most + 1e-9, "{channels}: {}", peak(&rows));
        }
    }

    #[test]
    fn vectors_side_by_side_are_rotated_alike() {
        for channels in [8, 12, 6, 48] {
            for rotation in [Rotation::hadamard(channels, 3).unwrap(), Rotation::mean_keeping(channels, 3).unwrap()] {
                let mut both: Vec<f64> = (0..2 * channels).map(|i| (i * i % 17) as f64 - 5.0).collect();
                let mut first: Vec<f64> = both.iter().step_by(2).copied().collect();
                rotation.apply_side_by_side(&mut both, 2, &mut Vec::new());
                rotation.apply(&mut first, &mut Vec::new());
                assert_eq!(both.iter().step_by(2).copied().collect::<Vec<_>>(), first);
            }
        }
    }

    #[test]
    fn sylvester_matrix_has_the_signs_of_common_bits() {
        let rows = dense(&Rotation::sylvester(8).unwrap());
        for (row, values) in rows.iter().enumerate() {
            for (column, value) in values.iter().enumerate() {
                let sign = if (row & column).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                assert!((value - sign / 8f64.sqrt()).abs() < 1e-12, "{row} {column}");
            }
        }
        assert!(Rotation::sylvester(0).is_none() && Rotation::sylvester(12).is_none());
        assert!(Rotation::sylvester(16).unwrap().is_sylvester() && !Rotation::hadamard(16, 3).unwrap().is_sylvester());
    }

    #[test]
    fn matrix_is_applied_as_the_product_that_it_is() {
        for rotation in [Rotation::sylvester(16), Rotation::hadamard(12, 3), Rotation::hadamard(48, 3)] {
            let rows = dense(&rotation.unwrap());
            let found = Rotation::of_matrix(rows.len(), rows.concat()).unwrap();
            let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
            assert!(dense(&found).concat().iter().zip(&rows.concat()).all(close), "{found}");
        }
        let twelve = paley(12).unwrap();
        let product = |row: usize, column: usize| {
            let sign = if (row & column & 3).count_ones().is_multiple_of(2) { 0.5 } else { -0.5 };
            twelve.at(row / 4, column / 4) * sign
        };
        let values = (0..48 * 48).map(|i| product(i / 48, i % 48)).collect();
        assert_eq!(Rotation::of_matrix(48, values).unwrap().to_string(), "matrix 12 x 2 x 2");
        assert!(Rotation::of_matrix(3, vec![0.0; 8]).is_none() && Rotation::of_matrix(0, vec![]).is_none());
    }

    #[test]
    fn transposed_rotation_is_the_inverse() {
        for rotation in [Rotation::hadamard(48, 3), Rotation::mean_keeping(48, 3), Rotation::sylvester(64)] {
            let rotation = rotation.unwrap();
            let before: Vec<f64> = (0..rotation.channels()).map(|i| (i * i % 17) as f64 - 5.0).collect();
            let (mut vector, mut scratch) = (before.clone(), Vec::new());
            rotation.apply(&mut vector, &mut scratch);
            rotation.apply_transposed(&mut vector, &mut scratch);
            assert!(vector.iter().zip(&before).all(|(a, b)| (a - b).abs() < 1e-9), "{rotation}");
        }
    }

    #[test]
    fn learned_matrix_follows_the_rotation_of_each_group() {
        let (channels, size, groups) = (12, 4, 3);
        let mut learned = RotationDescent::new(BlockDiagonal::identity(channels, size).unwrap(), false);
        let gradient = |group: usize| (0..size * size).map(|i| ((i * 7 + group) % 5) as f64).collect();
        learned.step(&(0..groups).map(gradient).collect::<Vec<_>>(), 0.5);
        let fixed = Rotation::hadamard(size, 3).unwrap();
        let rotation = fixed.clone().followed_by(Arc::new(learned.matrix().clone())).unwrap();
        assert_eq!((rotation.channels(), rotation.to_string().as_str()), (channels, "Hadamard 2 x 2, learned"));
        assert!(is_orthogonal(&dense(&rotation)));
        let vectors: Vec<f64> = (0..2 * channels).map(|i| (i * i % 17) as f64 - 5.0).collect();
        let mut expected = vectors.clone();
        expected.chunks_mut(size).for_each(|group| fixed.apply(group, &mut Vec::new()));
        for (at, group) in expected.chunks_mut(size).enumerate() {
            let block = &learned.matrix().blocks()[at % groups];
            let before = group.to_vec();
            for (column, out) in group.iter_mut().enumerate() {
                *out = before.iter().zip(block.iter().skip(column).step_by(size)).map(|(x, b)| x * b).sum();
            }
        }
        let mut found = vectors.clone();
        rotation.apply(&mut found, &mut Vec::new());
        assert!(apart(&found, &expected) < 1e-12);
        let mut side_by_side: Vec<f64> = (0..channels).flat_map(|i| [vectors[i], vectors[channels + i]]).collect();
        rotation.apply_side_by_side(&mut side_by_side, 2, &mut Vec::new());
        let back: Vec<f64> = (0..2 * channels).map(|i| side_by_side[i % channels * 2 + i / channels]).collect();
        assert!(apart(&back, &expected) < 1e-12);
        let other = Arc::new(BlockDiagonal::identity(10, 5).unwrap());
        assert!(fixed.followed_by(other).is_none());
    }

    #[test]
    fn same_seed_gives_the_same_rotation() {
        assert_eq!(Rotation::hadamard(40, 1), Rotation::hadamard(40, 1));
        assert_ne!(Rotation::hadamard(40, 1), Rotation::hadamard(40, 2));
        assert_ne!(Rotation::mean_keeping(40, 1), Rotation::mean_keeping(40, 2));
    }

    #[test]
    fn oversized_rotations_are_refused() {
        assert!(Rotation::hadamard(0, 1).is_none() && Rotation::mean_keeping(0, 1).is_none());
        assert!(Rotation::hadamard(LARGEST * 4 + 1, 1).is_none());
        assert!(Rotation::mean_keeping(LARGEST * 4 + 1, 1).is_none());
        assert!(Rotation::hadamard(1 << 40, 1).is_none() && Rotation::mean_keeping(1 << 40, 1).is_none());
    }
}
