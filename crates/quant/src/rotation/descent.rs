//! Gradient steps along orthogonal matrices (the Stiefel manifold of square matrices): from `R` to `R Cayley(A)`, where `A` is
//! skew-symmetric and `Cayley(A) = (I - A/2)^-1 (I + A/2)` is orthogonal, whatever the length of the step.
//!
//! With `f(R (I + A)) ~ f(R) + <A, M>`, `M = R' df/dR`, the steepest descent is along `-(M - M')/2`. It is averaged over steps and divided
//! by its own root mean square, so that a rate is an angle, for any loss and any number of channels.
//!
//! Sources: Li, Fuxin, Todorovic, Efficient Riemannian Optimization on the Stiefel Manifold via the Cayley Transform, arXiv 2002.01113; Liu
//! et al., SpinQuant: LLM quantization with learned rotations, arXiv 2405.16406.

use super::block_diagonal::{BlockDiagonal, identity, square};
use kvant_numeric::linalg::{Cholesky, Matrix, Threads, multiply, multiply_add};
use rayon::prelude::*;

/// The share of earlier steps in the average of gradients.
const MOMENTUM: f64 = 0.9;
/// The same in the average of their squares.
const POWER_MOMENTUM: f64 = 0.99;
/// Columns of an inverse that a thread finds at a time.
const STRIP: usize = 64;

/// A matrix that is learned.
#[derive(Debug, Clone, PartialEq)]
pub struct RotationDescent {
    /// The matrix.
    matrix: BlockDiagonal,
    /// The average of skew gradients, block by block.
    momentum: Vec<Vec<f64>>,
    /// The average of the mean square of their rows.
    power: f64,
    steps: u32,
    keeps_mean: bool,
}

/// All that decides the further steps of a [`RotationDescent`].
#[derive(Debug, Clone, PartialEq)]
pub struct DescentState {
    /// The matrix.
    pub matrix: BlockDiagonal,
    /// The average of skew gradients, block by block.
    pub momentum: Vec<Vec<f64>>,
    /// The average of the mean square of their rows.
    pub power: f64,
    /// Steps so far.
    pub steps: u32,
}

impl RotationDescent {
    /// Begins with a matrix. One that `keeps_mean` maps the vector of ones of each block to itself, and so do all that follow.
    pub fn new(matrix: BlockDiagonal, keeps_mean: bool) -> RotationDescent {
        let momentum = vec![vec![0.0; matrix.size() * matrix.size()]; matrix.blocks().len()];
        RotationDescent { matrix, momentum, power: 0.0, steps: 0, keeps_mean }
    }

    /// Resumes from a state; `None` where its parts do not fit each other.
    pub fn resume(state: DescentState, keeps_mean: bool) -> Option<RotationDescent> {
        let DescentState { matrix, momentum, power, steps } = state;
        let fits = momentum.len() == matrix.blocks().len()
            && momentum.iter().zip(matrix.blocks()).all(|(momentum, block)| momentum.len() == block.len());
        fits.then_some(RotationDescent { matrix, momentum, power, steps, keeps_mean })
    }

    /// What decides the further steps.
    pub fn state(&self) -> DescentState {
        let RotationDescent { matrix, momentum, power, steps, .. } = self;
        DescentState { matrix: matrix.clone(), momentum: momentum.clone(), power: *power, steps: *steps }
    }

    /// Returns whether the vector of ones of each block stays as it is.
    pub fn keeps_mean(&self) -> bool {
        self.keeps_mean
    }

    /// The matrix.
    pub fn matrix(&self) -> &BlockDiagonal {
        &self.matrix
    }

    /// A step against `R' df/dR`, of which blocks on the diagonal are given. It turns channels by about `angle` radians, as a root mean square
    /// over them, where gradients of several steps agree, and by less where they do not.
    pub fn step(&mut self, gradient: &[Vec<f64>], angle: f64) {
        let size = self.matrix.size();
        let skew: Vec<Vec<f64>> = gradient.iter().map(|block| self.tangent(block)).collect();
        let square: f64 = skew.iter().flatten().map(|element| element * element).sum();
        self.steps += 1;
        self.power = POWER_MOMENTUM * self.power + (1.0 - POWER_MOMENTUM) * square / self.matrix.channels() as f64;
        let bias = |momentum: f64| 1.0 - momentum.powi(self.steps.min(1 << 20) as i32);
        let length = (self.power / bias(POWER_MOMENTUM)).sqrt();
        for (average, skew) in self.momentum.iter_mut().zip(&skew) {
            let both = average.iter_mut().zip(skew);
            both.for_each(|(average, skew)| *average = MOMENTUM * *average + (1.0 - MOMENTUM) * skew);
        }
        // Without a gradient there is nowhere to go; one that is not a number must not spoil the matrix.
        if !(length.is_finite() && length > 0.0) {
            return;
        }
        let factor = -angle / (length * bias(MOMENTUM));
        for (block, average) in self.matrix.blocks_mut().iter_mut().zip(&self.momentum) {
            let direction: Vec<f64> = average.iter().map(|element| factor * element).collect();
            *block = product(block, &cayley(&direction, size), size);
        }
    }

    /// The part of a gradient along the manifold: its skew-symmetric part, which maps ones to nothing where the mean is kept.
    fn tangent(&self, gradient: &[f64]) -> Vec<f64> {
        let size = self.matrix.size();
        let at = |row: usize, column: usize| gradient[row * size + column];
        let mut skew: Vec<f64> =
            (0..size * size).map(|i| 0.5 * (at(i / size, i % size) - at(i % size, i / size))).collect();
        if self.keeps_mean {
            let means: Vec<f64> = skew.chunks_exact(size).map(|row| row.iter().sum::<f64>() / size as f64).collect();
            for (row, mean) in skew.chunks_exact_mut(size).zip(&means) {
                row.iter_mut().zip(&means).for_each(|(element, of_column)| *element += of_column - mean);
            }
        }
        skew
    }
}

/// `(I - A/2)^-1 (I + A/2)` of a skew-symmetric `A`, computed as `(I + A'A/4)^-1 (I + A/2)^2`, whose first factor is the inverse of a
/// symmetric matrix with eigenvalues from 1 on.
fn cayley(skew: &[f64], size: usize) -> Vec<f64> {
    let a = Matrix::new(skew, size, size, size);
    let mut symmetric = identity(size);
    multiply_add(square(&mut symmetric, size), a.transposed(), a, 0.25, Threads::Pool);
    let half: Vec<f64> = identity(size).iter().zip(skew).map(|(one, element)| one + 0.5 * element).collect();
    let fill = |rows: std::ops::Range<usize>, out: &mut [f64]| {
        for (row, out) in rows.clone().zip(out.chunks_exact_mut(rows.end)) {
            out.copy_from_slice(&symmetric[row * size..][..rows.end]);
        }
    };
    // Only elements that are not numbers have no factor: such a step is none.
    let Ok(factor) = Cholesky::factor(size, fill) else { return identity(size) };
    // Rows of `L^-T`, as columns of `L^-1` follow one another.
    let mut inverse = identity(size);
    inverse.par_chunks_mut(size * STRIP).for_each(|columns| factor.solve_lower(columns));
    let inverse = Matrix::new(&inverse, size, size, size);
    let mut product_of_inverses = vec![0.0; size * size];
    multiply(square(&mut product_of_inverses, size), inverse, inverse.transposed(), 1.0, Threads::Pool);
    product(&product(&product_of_inverses, &half, size), &half, size)
}

fn product(a: &[f64], b: &[f64], size: usize) -> Vec<f64> {
    let mut out = vec![0.0; size * size];
    let of = |elements| Matrix::new(elements, size, size, size);
    multiply(square(&mut out, size), of(a), of(b), 1.0, Threads::Pool);
    out
}

#[cfg(test)]
mod tests {
    use super::super::apart;
    use super::*;
    use crate::random::SplitMix64;

    fn drawn(count: usize, seed: u64) -> Vec<f64> {
        let mut random = SplitMix64::new(seed);
        (0..count).map(|_| 2.0 * random.uniform() - 1.0).collect()
    }

    #[test]
    fn cayley_transform_solves_its_equation() {
        for size in [1, 2, 5, 64, 300] {
            let drawn = drawn(size * size, 3);
            let skew: Vec<f64> =
                (0..size * size).map(|i| (drawn[i] - drawn[i % size * size + i / size]) / size as f64).collect();
            let found = cayley(&skew, size);
            let half = |sign: f64| -> Vec<f64> {
                identity(size).iter().zip(&skew).map(|(one, element)| one + sign * 0.5 * element).collect()
            };
            assert!(apart(&product(&half(-1.0), &found, size), &half(1.0)) < 1e-13, "{size}");
        }
    }

    /// Of a loss `-<R, T>` the gradient `R' df/dR` is `-R' T`, and its minimum over rotations near the target is the target.
    fn descend(learned: &mut RotationDescent, target: &BlockDiagonal, steps: usize) {
        let size = target.size();
        for index in 0..steps {
            let both = learned.matrix().blocks().iter().zip(target.blocks());
            let gradient = both.map(|(r, t)| {
                let mut out = vec![0.0; size * size];
                let of = |elements| Matrix::new(elements, size, size, size);
                multiply(square(&mut out, size), of(r).transposed(), of(t), -1.0, Threads::One);
                out
            });
            let gradient: Vec<Vec<f64>> = gradient.collect();
            learned.step(&gradient, 0.1 * (1.0 - index as f64 / steps as f64));
        }
    }

    fn rotated(channels: usize, size: usize, keeps_mean: bool, seed: u64) -> BlockDiagonal {
        let mut learned = RotationDescent::new(BlockDiagonal::identity(channels, size).unwrap(), keeps_mean);
        for step in 0..5 {
            let gradient: Vec<Vec<f64>> =
                (0..channels / size).map(|block| drawn(size * size, seed + 100 * step + block as u64)).collect();
            learned.step(&gradient, 0.2);
        }
        learned.matrix().clone()
    }

    #[test]
    fn steps_stay_orthogonal_and_reach_a_minimum() {
        for (channels, size, keeps_mean) in [(48, 48, false), (48, 16, false), (32, 32, true), (64, 16, true)] {
            let target = rotated(channels, size, keeps_mean, 9);
            let mut learned = RotationDescent::new(BlockDiagonal::identity(channels, size).unwrap(), keeps_mean);
            let distance = |learned: &RotationDescent| {
                let both = learned.matrix().blocks().iter().zip(target.blocks());
                both.map(|(a, b)| apart(a, b)).fold(0.0, f64::max)
            };
            let before = distance(&learned);
            descend(&mut learned, &target, 400);
            assert!(learned.matrix().departure() < 1e-12, "{}", learned.matrix().departure());
            assert!(distance(&learned) < 0.02 * before, "{channels} {size}: {} of {before}", distance(&learned));
            if keeps_mean {
                let sums = learned.matrix().blocks().iter().flat_map(|block| {
                    (0..size).map(|column| block.iter().skip(column).step_by(size).sum::<f64>()).collect::<Vec<_>>()
                });
                assert!(sums.into_iter().all(|sum| (sum - 1.0).abs() < 1e-12));
            }
        }
    }

    #[test]
    fn interrupted_descent_continues_to_the_same_matrix() {
        let target = rotated(24, 12, false, 4);
        let mut whole = RotationDescent::new(BlockDiagonal::identity(24, 12).unwrap(), false);
        descend(&mut whole, &target, 5);
        let mut resumed = RotationDescent::resume(whole.state(), false).unwrap();
        descend(&mut whole, &target, 5);
        descend(&mut resumed, &target, 5);
        assert_eq!(whole, resumed);
        let broken = DescentState { momentum: Vec::new(), ..whole.state() };
        assert!(RotationDescent::resume(broken, false).is_none());
    }

    #[test]
    fn gradients_that_lead_nowhere_change_nothing() {
        let start = rotated(8, 8, false, 1);
        for gradient in [vec![0.0; 64], vec![f64::NAN; 64]] {
            let mut learned = RotationDescent::new(start.clone(), false);
            learned.step(&[gradient], 0.1);
            assert_eq!(learned.matrix(), &start);
        }
    }
}
