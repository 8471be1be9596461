//! Bias correction: the mean error of each channel of a layer's output, on calibration data, goes into its bias.
//!
//! With `y` the layer's output in floats and `y'` that of the quantized layer: `b[c] += strength * mean(y[c] - y'[c])` over samples and
//! positions, before the activation function. Graphs sum up the outputs themselves ([`mean_error`]); where the layer is a product,
//! `y - y' = (W - Q) x` of the same inputs, and the mean is that of the inputs ([`MeanInput`]).
//! Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, arXiv 1906.04721, the empirical
//! form.

use crate::options::{OptionRow, Values};
use crate::registry::AlgorithmRow;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// The name.
pub const NAME: &str = "bias-correction";

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BiasCorrection {
    /// The share of the mean error that is compensated.
    pub strength: f32,
}

impl BiasCorrection {
    /// All of it.
    pub const DEFAULTS: Self = Self { strength: 1.0 };

    /// The bias that compensates for the mean error of each channel; the layer multiplies its bias by `factor`. A bias that would
    /// be NaN or infinite stays as it was.
    pub fn corrected(&self, bias: &[f32], mean_error: &[f64], factor: f32) -> Vec<f32> {
        let factor = f64::from(if factor == 0.0 { 1.0 } else { factor });
        let corrected = |(&before, error): (&f32, &f64)| {
            let made = (f64::from(before) + f64::from(self.strength) * error / factor) as f32;
            if made.is_finite() { made } else { before }
        };
        bias.iter().zip(mean_error).map(corrected).collect()
    }
}

/// Its options.
const OPTIONS: &[OptionRow] =
    &[OptionRow { name: "strength", values: Values::SHARE, about: "the share of the mean error that is made up for" }];

/// The row.
pub fn row() -> AlgorithmRow<BiasCorrection> {
    let about = "biases that make up for the mean error of each channel of a layer's output";
    let row = AlgorithmRow::of_settings(NAME, about, OPTIONS, BiasCorrection::DEFAULTS, |settings| settings);
    row.with_aliases(&["biascorrection", "bc"]).with_paper("arXiv 1906.04721")
}

/// The mean error of each channel, of sums of differences, float less quantized, over `count` outputs of each.
pub fn mean_error(sums: &[f64], count: f64) -> Vec<f64> {
    sums.iter().map(|sum| sum / count.max(1.0)).collect()
}

/// The mean of the rows that a layer reads.
#[derive(Debug, Clone, PartialEq)]
pub struct MeanInput {
    sums: Vec<f64>,
    rows: u64,
}

impl MeanInput {
    /// Of no rows yet, of so many features.
    pub fn new(features: usize) -> MeanInput {
        MeanInput { sums: vec![0.0; features], rows: 0 }
    }

    /// Adds rows, one after the other: sums do not depend on the number of threads.
    pub fn add(&mut self, rows: &[f32]) {
        for row in rows.chunks_exact(self.sums.len().max(1)) {
            self.sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
            self.rows += 1;
        }
    }

    /// Rows that were added.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The mean of `(W - Q) x`: one error for each row of the weight, NaN if an input is NaN.
    pub fn errors(&self, weight: &[f32], quantized: &[f32]) -> Vec<f64> {
        let features = self.sums.len().max(1);
        let sums = weight.par_chunks(features).zip(quantized.par_chunks(features)).map(|(weight, quantized)| {
            let products = weight.iter().zip(quantized).zip(&self.sums);
            products.map(|((w, q), sum)| (f64::from(*w) - f64::from(*q)) * sum).sum()
        });
        mean_error(&sums.collect::<Vec<f64>>(), self.rows as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_added_as_the_layer_will_multiply_it() {
        let half = BiasCorrection { strength: 0.5 };
        assert_eq!(half.corrected(&[1.0, 2.0], &[2.0, f64::NAN], 2.0), [1.5, 2.0]);
    }

    #[test]
    fn the_mean_error_of_a_product_is_that_of_its_mean_input() {
        let (weight, quantized) = ([0.5, -1.0, 2.0], [0.25, -1.0, 2.5]);
        let inputs = [1.0, 2.0, 3.0, -2.0, 0.5, 1.0];
        let mut mean = MeanInput::new(3);
        mean.add(&inputs[..3]);
        mean.add(&inputs[3..]);
        let product = |w: &[f32; 3], x: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(w * x)).sum::<f64>();
        let errors: Vec<f64> = inputs.chunks(3).map(|x| product(&weight, x) - product(&quantized, x)).collect();
        let direct = mean_error(&[errors.iter().sum()], 2.0);
        assert_eq!((mean.rows(), mean.errors(&weight, &quantized)), (2, direct));
    }
}
