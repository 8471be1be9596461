//! A layer as a product of weights and patches, forward and backward. No loss, no rounding.

use super::activation_function::ActivationFunction;
use super::channelwise::{channel_gradients, channel_products};
use super::settings::InputMix;
use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, multiply, multiply_add};
use rayon::prelude::*;

/// The sizes of a layer. Its weight is `[outputs, features]`, row-major; its patches are `[groups * features, positions]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Groups: outputs of a group read the patches of that group alone. They divide the outputs.
    pub groups: usize,
    /// Outputs of all groups.
    pub outputs: usize,
    /// Weights of one output.
    pub features: usize,
}

/// A layer and the function behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct Module {
    /// The sizes.
    pub shape: Shape,
    /// The function.
    pub function: ActivationFunction,
}

/// The input and the target output of a layer for one sample.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a> {
    /// `[groups * features, positions]`: what each output reads at each position.
    pub patches: &'a [f32],
    /// `[outputs, positions]`: what the float model makes, before the activation function.
    pub targets: &'a [f32],
    /// Positions.
    pub positions: usize,
}

/// The samples of a layer, in memory or in a file.
pub trait Samples {
    /// The reason that a sample could not be read, or a cancellation.
    type Error;

    /// Number of samples; at least one.
    fn count(&self) -> usize;

    /// A sample.
    ///
    /// # Errors
    /// It cannot be had.
    fn sample(&mut self, index: usize) -> Result<Sample<'_>, Self::Error>;

    /// A sample as one step of training sees it where inputs are mixed; `draw` counts samples drawn before it.
    ///
    /// # Errors
    /// It cannot be had.
    fn mixed(&mut self, index: usize, mix: InputMix, draw: u64) -> Result<Sample<'_>, Self::Error> {
        let _ = (mix, draw);
        self.sample(index)
    }

    /// Asked now and then: fails where somebody asked to stop.
    ///
    /// # Errors
    /// To stop.
    fn check_cancelled(&self) -> Result<(), Self::Error>;
}

/// The method of products; it depends only on the sizes, so that sums have one order.
enum Way {
    /// One product.
    Whole,
    /// A product for each group.
    Groups,
    /// Output by output.
    Channels,
}

/// Weights of an output up to which a product is not worth being one.
const FEW_FEATURES: usize = 64;

impl Shape {
    /// Weights.
    pub fn weights(&self) -> usize {
        self.outputs * self.features
    }

    /// Outputs of a group.
    pub(super) fn per_group(&self) -> usize {
        self.outputs / self.groups.max(1)
    }

    fn way(&self) -> Way {
        match (self.groups, self.per_group()) {
            (1, _) => Way::Whole,
            (_, 1..=2) if self.features <= FEW_FEATURES => Way::Channels,
            _ => Way::Groups,
        }
    }

    /// `outputs = W X`.
    pub(super) fn products(&self, weights: &[f32], sample: Sample<'_>, outputs: &mut [f32]) {
        let Shape { features, .. } = *self;
        let (patches, positions) = (sample.patches, sample.positions);
        if positions == 0 || outputs.is_empty() || features == 0 {
            return outputs.fill(0.0);
        }
        let product = |weights: &[f32], patches: &[f32], outputs: &mut [f32], rows, threads| {
            let out = MatrixMut::new(outputs, rows, positions, positions);
            let (w, x) =
                (Matrix::new(weights, rows, features, features), Matrix::new(patches, features, positions, positions));
            multiply(out, w, x, 1.0, threads);
        };
        let rows = self.per_group();
        match self.way() {
            Way::Whole => product(weights, patches, outputs, rows, Threads::Pool),
            Way::Groups => {
                let groups = outputs.par_chunks_mut(rows * positions).zip(weights.par_chunks(rows * features));
                let groups = groups.zip(patches.par_chunks(features * positions));
                groups.for_each(|((outputs, w), x)| product(w, x, outputs, rows, Threads::One));
            }
            Way::Channels => channel_products(rows, features, positions, weights, patches, outputs),
        }
    }

    /// `gradients = S X^T` with the slopes `S` of the loss, `[outputs, positions]`; added to what is there where `added`.
    pub(super) fn gradients(&self, slopes: &[f32], sample: Sample<'_>, gradients: &mut [f32], added: bool) {
        let Shape { features, .. } = *self;
        let (patches, positions) = (sample.patches, sample.positions);
        if positions == 0 || gradients.is_empty() {
            if !added {
                gradients.fill(0.0);
            }
            return;
        }
        let product = |slopes: &[f32], patches: &[f32], gradients: &mut [f32], rows, threads| {
            let out = MatrixMut::new(gradients, rows, features, features);
            let s = Matrix::new(slopes, rows, positions, positions);
            let x = Matrix::new(patches, features, positions, positions).transposed();
            if added { multiply_add(out, s, x, 1.0, threads) } else { multiply(out, s, x, 1.0, threads) }
        };
        let rows = self.per_group();
        match self.way() {
            Way::Whole => product(slopes, patches, gradients, rows, Threads::Pool),
            Way::Groups => {
                let groups = gradients.par_chunks_mut(rows * features).zip(slopes.par_chunks(rows * positions));
                let groups = groups.zip(patches.par_chunks(features * positions));
                groups.for_each(|((gradients, s), x)| product(s, x, gradients, rows, Threads::One));
            }
            Way::Channels => channel_gradients(rows, features, positions, slopes, patches, gradients, added),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 37 + seed * 11) % 19) as f32 * 0.25 - 2.0).collect()
    }

    /// One group; depthwise with one and two outputs to a group; groups of several; more features than are done by channel.
    const SHAPES: [(usize, usize, usize); 6] = [(1, 5, 7), (4, 4, 9), (3, 6, 9), (2, 8, 6), (3, 3, 70), (1, 1, 1)];

    #[test]
    fn module_products_and_gradients_match_the_definition() {
        for (groups, outputs, features) in SHAPES {
            let shape = Shape { groups, outputs, features };
            for positions in [1, 3, 40, 1100] {
                let patches = values(groups * features * positions, 1);
                let (weights, slopes) = (values(shape.weights(), 2), values(outputs * positions, 3));
                let sample = Sample { patches: &patches, targets: &slopes, positions };
                let row =
                    |o: usize, k: usize| &patches[(o / shape.per_group() * features + k) * positions..][..positions];
                let mut made = vec![f32::NAN; outputs * positions];
                shape.products(&weights, sample, &mut made);
                for (o, p) in (0..outputs).flat_map(|o| (0..positions).map(move |p| (o, p))) {
                    let sum: f32 = (0..features).map(|k| weights[o * features + k] * row(o, k)[p]).sum();
                    assert_eq!(made[o * positions + p], sum, "{shape:?} {positions}");
                }
                let mut gradients = vec![f32::NAN; shape.weights()];
                shape.gradients(&slopes, sample, &mut gradients, false);
                let once = gradients.clone();
                shape.gradients(&slopes, sample, &mut gradients, true);
                for (o, k) in (0..outputs).flat_map(|o| (0..features).map(move |k| (o, k))) {
                    let sum: f32 = row(o, k).iter().zip(&slopes[o * positions..]).map(|(x, s)| x * s).sum();
                    assert_eq!(
                        (once[o * features + k], gradients[o * features + k]),
                        (sum, 2.0 * sum),
                        "{shape:?} {positions}"
                    );
                }
            }
        }
    }
}
