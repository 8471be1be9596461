//! The loss of a layer without an activation function over all samples at once: a quadratic form in the weights, whose
//! matrices are summed once. The cost of a step then does not depend on the number of positions, and it covers every sample.
//!
//! With `D = W' - W`, `R = W X + b - t` and `d` the change of the bias, over all samples and positions:
//! `L = (sum D (X X^T) D^T + 2 sum D . (R X^T) + sum R^2 + ...) / positions`. The differences are small numbers of their own, so
//! that f32 does not lose them.

use super::module::{Module, Samples, Shape};
use super::objective::Gradients;
use super::variables::Weight;
use crate::hessian::Hessian;
use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, multiply, multiply_add};
use rayon::prelude::*;

/// Features beyond which the matrix of a group would take more than it saves.
const MOST_FEATURES: usize = 2048;

/// The sums of the loss.
#[derive(Debug)]
pub(super) struct Quadratic {
    shape: Shape,
    /// The float weights and bias, from which differences are taken.
    weights: Vec<f32>,
    bias: Vec<f32>,
    /// `X X^T` of each group.
    grams: Vec<f32>,
    /// `R X^T`.
    crosses: Vec<f32>,
    /// Sums of patches over positions.
    sums: Vec<f32>,
    /// Sums of `R` over positions.
    residuals: Vec<f32>,
    squares: f64,
    positions: f64,
}

impl Quadratic {
    /// Sums up all samples; `None` where the loss has no such form, or a step over a batch costs less.
    pub fn new<S: Samples + ?Sized>(
        module: &Module,
        weight: Weight<'_>,
        samples: &mut S,
        batch: usize,
        is_mixed: bool,
    ) -> Result<Option<Self>, S::Error> {
        let shape = module.shape;
        let positions = samples.sample(0)?.positions;
        let pays = shape.features <= MOST_FEATURES.min(2 * batch * positions);
        if !module.function.is_linear() || !pays || is_mixed {
            return Ok(None);
        }
        let mut made = Self::empty(shape, weight);
        let mut outputs = vec![0.0; shape.outputs * positions];
        for index in 0..samples.count() {
            samples.check_cancelled()?;
            let sample = samples.sample(index)?;
            // The mean over samples is that over positions only where they have as many.
            if sample.positions != positions {
                return Ok(None);
            }
            shape.products(&made.weights, sample, &mut outputs);
            made.add(sample.patches, sample.targets, &mut outputs, positions);
        }
        Ok(Some(made))
    }

    /// The sums of a layer without a bias and without an activation function, whose error in outputs follows from the Hessian
    /// and the input mismatch: `R X^T = W (X - X') X^T = -W D`. The loss without rounding is not included,
    /// so that it may be negative.
    pub fn of_hessian(shape: Shape, weight: Weight<'_>, hessian: &Hessian) -> Self {
        let (features, mut made) = (shape.features, Self::empty(shape, weight));
        for (row, sums) in (0..features).map(|row| (row, hessian.gram().sums().row(row))) {
            for (column, sum) in sums[..=row].iter().enumerate() {
                made.grams[row * features + column] = *sum;
                made.grams[column * features + row] = *sum;
            }
        }
        if let Some(mismatch) = hessian.mismatch() {
            let weights = Matrix::new(weight.values, shape.outputs, features, features);
            let mismatch = Matrix::new(mismatch.sums(), features, features, features);
            let out = MatrixMut::new(&mut made.crosses, shape.outputs, features, features);
            multiply(out, weights, mismatch, -1.0, Threads::Pool);
        }
        made.positions = (hessian.tokens() as f64).max(1.0);
        made
    }

    fn empty(shape: Shape, weight: Weight<'_>) -> Self {
        Self {
            shape,
            weights: weight.values.to_vec(),
            bias: weight.bias.map_or_else(|| vec![0.0; shape.outputs], <[f32]>::to_vec),
            grams: vec![0.0; shape.groups * shape.features * shape.features],
            crosses: vec![0.0; shape.weights()],
            sums: vec![0.0; shape.groups * shape.features],
            residuals: vec![0.0; shape.outputs],
            squares: 0.0,
            positions: 0.0,
        }
    }

    /// Adds a sample; `outputs` are `W X`, and are turned into `R`.
    fn add(&mut self, patches: &[f32], targets: &[f32], outputs: &mut [f32], positions: usize) {
        let rows = outputs.par_chunks_mut(positions).zip(targets.par_chunks(positions)).zip(&self.bias);
        let squares = rows.zip(&mut self.residuals).map(|(((outputs, targets), bias), residual)| {
            for (output, target) in outputs.iter_mut().zip(targets) {
                *output += bias - target;
            }
            *residual += outputs.iter().sum::<f32>();
            outputs.iter().map(|r| f64::from(*r).powi(2)).sum::<f64>()
        });
        self.squares += squares.collect::<Vec<f64>>().iter().sum::<f64>();
        let features = self.shape.features;
        let groups = self.grams.chunks_mut(features * features).zip(patches.chunks(features * positions));
        for (gram, patches) in groups {
            let x = Matrix::new(patches, features, positions, positions);
            multiply_add(MatrixMut::new(gram, features, features, features), x, x.transposed(), 1.0, Threads::Pool);
        }
        let sample = super::Sample { patches, targets, positions };
        self.shape.gradients(outputs, sample, &mut self.crosses, true);
        let rows = self.sums.par_iter_mut().zip(patches.par_chunks(positions));
        rows.for_each(|(sum, row)| *sum += row.iter().sum::<f32>());
        self.positions += positions as f64;
    }

    /// The loss with other weights and another bias, and its gradients.
    pub fn differentiate(&self, weights: &[f32], bias: Option<&[f32]>, gradients: &mut Gradients) -> f64 {
        let features = self.shape.features.max(1);
        let differences: Vec<f32> = weights.iter().zip(&self.weights).map(|(now, then)| now - then).collect();
        gradients.weights.resize(weights.len(), 0.0);
        gradients.bias.resize(self.shape.outputs, 0.0);
        self.products(&differences, &mut gradients.weights);
        let rows = gradients.weights.par_chunks_mut(features).zip(differences.par_chunks(features));
        let rows = rows.zip(self.crosses.par_chunks(features)).zip(&mut gradients.bias).enumerate();
        let sums = rows.map(|(output, (((gradient, d), cross), by_bias))| {
            let change = bias.map_or(0.0, |bias| bias[output] - self.bias[output]);
            let sums = &self.sums[output / self.shape.per_group() * features..][..features];
            let (mut loss, mut moved) = (0f64, 0f64);
            for k in 0..features {
                loss += f64::from(d[k]) * f64::from(gradient[k] + 2.0 * cross[k]);
                moved += f64::from(d[k]) * f64::from(sums[k]);
                gradient[k] = (2.0 / self.positions) as f32 * (gradient[k] + cross[k] + change * sums[k]);
            }
            let (residual, change) = (f64::from(self.residuals[output]), f64::from(change));
            *by_bias = (2.0 / self.positions * (moved + residual + self.positions * change)) as f32;
            loss + change * (2.0 * (moved + residual) + self.positions * change)
        });
        let sum: f64 = sums.collect::<Vec<f64>>().iter().sum();
        (self.squares + sum) / self.positions
    }

    /// `D (X X^T)`, group by group.
    fn products(&self, differences: &[f32], out: &mut [f32]) {
        let (rows, features) = (self.shape.per_group(), self.shape.features);
        let groups = out.chunks_mut(rows * features).zip(differences.chunks(rows * features));
        for ((out, d), gram) in groups.zip(self.grams.chunks(features * features)) {
            let (d, gram) = (Matrix::new(d, rows, features, features), Matrix::new(gram, features, features, features));
            multiply(MatrixMut::new(out, rows, features, features), d, gram, 1.0, Threads::Pool);
        }
    }
}
