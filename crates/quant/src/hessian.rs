//! Input statistics of a layer from calibration, and the output error that follows. Not the roundings that use them.

use kvant_numeric::linalg::{CrossGram, Gram, Matrix, MatrixMut, Precision, Threads, multiply};
use rayon::prelude::*;

/// The Hessian of a layer's output error in its weights, and, for algorithms that compensate for the error of earlier layers,
/// the mismatch between these inputs and those of the float model. Layers that read the same inputs share it.
///
/// With tokens as rows, `X` the inputs that the layer sees in the quantized model and `X'` those of the float model:
/// `H = X^T X`, `D = (X' - X)^T X`. Both are plain sums, so parts [merge](Self::merge) exactly into the whole; factors
/// that papers put before them (`2 / tokens`) change no code.
#[derive(Clone, Debug, PartialEq)]
pub struct Hessian {
    gram: Gram,
    mismatch: Option<CrossGram>,
}

/// Reasons that a Hessian cannot be used.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum HessianError {
    /// No input was different from zero (*invalid*: the calibration did not reach the layer).
    #[error("no calibration token reached it")]
    NoData,
    /// Sums that are NaN or infinite (*invalid*).
    #[error("its calibration inputs hold NaN or infinite values, or overflow")]
    NotFinite,
    /// The weight has another number of inputs (*invalid*).
    #[error("its {columns} inputs are not the {features} that were calibrated")]
    Features {
        /// Columns of the weight.
        columns: usize,
        /// Features of the Hessian.
        features: usize,
    },
    /// The algorithm needs the inputs of the float model too (*invalid*).
    #[error("the algorithm needs the inputs of the float model in addition to those of the quantized one")]
    NoMismatch,
    /// Scales from elsewhere do not go with scales that are found while a weight is rounded (*unsupported*).
    #[error("scales of clipped weights cannot be combined with scales of each group")]
    ParametersNotStatic,
    /// Not positive definite at any damping that was tried (*invalid*).
    #[error("its calibration inputs leave no positive definite Hessian, even with {tries} times more damping")]
    NotPositiveDefinite {
        /// The number of times damping was added.
        tries: u32,
    },
}

impl HessianError {
    /// The remedy.
    pub fn hint(&self) -> &'static str {
        match self {
            HessianError::NoData => "give more calibration text, or round this layer to nearest with ‹override›",
            HessianError::NotFinite => "calibrate in f32, or look for the layer whose outputs overflow",
            HessianError::Features { .. } | HessianError::NoMismatch => {
                "collect the statistics that the algorithm names"
            }
            HessianError::ParametersNotStatic => "use static groups, or do not clip",
            HessianError::NotPositiveDefinite { .. } => "give more calibration text or a larger damping",
        }
    }
}

impl Hessian {
    /// Bytes that one of so many features takes: the lower half in `f32`, and all of the mismatch where it is kept.
    pub fn bytes(features: usize, mismatch: bool) -> u64 {
        let square = (features as u64).saturating_pow(2).saturating_mul(4);
        (square / 2).saturating_add(if mismatch { square } else { 0 })
    }

    /// The Hessian of no tokens, in f32.
    pub fn new(features: usize) -> Hessian {
        Hessian::with_precision(features, Precision::F32)
    }

    /// The Hessian of no tokens. In [`Precision::Bf16`] inputs are rounded to bfloat16, as those of a pass in that precision
    /// are, and multiplied where that is fastest: see [`Gram`].
    pub fn with_precision(features: usize, precision: Precision) -> Hessian {
        Hessian { gram: Gram::with_precision(features, precision), mismatch: None }
    }

    /// The Hessian and the input mismatch of no tokens, in f32.
    pub fn with_mismatch(features: usize) -> Hessian {
        Hessian::with_mismatch_in(features, Precision::F32)
    }

    /// The Hessian and the input mismatch of no tokens. In [`Precision::Bf16`] inputs and differences of inputs are rounded to
    /// bfloat16; the latter are no longer exact then, but off by 1/512 of themselves at most.
    pub fn with_mismatch_in(features: usize, precision: Precision) -> Hessian {
        let mismatch = Some(CrossGram::with_precision(features, precision));
        Hessian { mismatch, ..Hessian::with_precision(features, precision) }
    }

    /// Puts a Hessian together from its parts, which have the same features.
    pub fn from_parts(gram: Gram, mismatch: Option<CrossGram>) -> Hessian {
        Hessian { gram, mismatch }
    }

    /// Adds inputs: rows of `features` elements. Where a mismatch is kept, these inputs have none.
    ///
    /// # Panics
    /// If the last row is incomplete.
    pub fn add(&mut self, inputs: &[f32]) {
        self.gram.add(inputs);
    }

    /// Adds inputs and what they are in the float model, row for row. `float_inputs` becomes the difference.
    ///
    /// # Panics
    /// If the numbers of rows differ, or a last row is not whole.
    pub fn add_with_float(&mut self, inputs: &[f32], float_inputs: &mut [f32]) {
        assert_eq!(inputs.len(), float_inputs.len(), "rows come in pairs");
        self.gram.add(inputs);
        if let Some(mismatch) = &mut self.mismatch {
            float_inputs.iter_mut().zip(inputs).for_each(|(float, input)| *float -= input);
            mismatch.add(float_inputs, inputs);
        }
    }

    /// Adds what other tokens gave.
    ///
    /// # Panics
    /// If the numbers of features differ, or only one of the two keeps a mismatch.
    pub fn merge(&mut self, other: &Hessian) {
        assert_eq!(self.mismatch.is_some(), other.mismatch.is_some(), "either both keep a mismatch or neither");
        self.gram.merge(&other.gram);
        if let (Some(mismatch), Some(more)) = (&mut self.mismatch, &other.mismatch) {
            mismatch.merge(more);
        }
    }

    /// Input features, columns of the weight.
    pub fn features(&self) -> usize {
        self.gram.features()
    }

    /// Tokens seen.
    pub fn tokens(&self) -> u64 {
        self.gram.tokens()
    }

    /// `H`.
    pub fn gram(&self) -> &Gram {
        &self.gram
    }

    /// The diagonal of `H`: the sum of squares of each input.
    pub fn diagonal(&self) -> Vec<f32> {
        self.gram.diagonal()
    }

    /// `D`, where it is kept.
    pub fn mismatch(&self) -> Option<&CrossGram> {
        self.mismatch.as_ref()
    }

    /// Checks that the sums are finite and some input is not zero.
    ///
    /// # Errors
    /// [`HessianError::NotFinite`] and [`HessianError::NoData`].
    pub fn check(&self) -> Result<(), HessianError> {
        let mismatch =
            self.mismatch.as_ref().is_none_or(|sums| (0..self.features()).all(|row| all_finite(sums.row(row))));
        if !all_finite(self.gram.sums().elements()) || !mismatch {
            return Err(HessianError::NotFinite);
        }
        if self.diagonal().iter().all(|sum| *sum <= 0.0) { Err(HessianError::NoData) } else { Ok(()) }
    }

    /// The squared error of the layer's outputs, summed over outputs and tokens: `tr((W - Q) H (W - Q)^T)` of row-major
    /// weights and their quantized values.
    ///
    /// # Panics
    /// If the slices differ in length, or their last row is not whole.
    pub fn loss(&self, weights: &[f32], quantized: &[f32]) -> f64 {
        assert_eq!(weights.len(), quantized.len(), "as many weights as quantized values");
        let columns = self.features();
        assert!(columns > 0 && weights.len().is_multiple_of(columns), "rows of {columns} weights");
        let bands = weights.par_chunks(BAND * columns).zip(quantized.par_chunks(BAND * columns));
        let losses: Vec<f64> = bands.map(|(weights, quantized)| self.band_loss(weights, quantized)).collect();
        losses.iter().sum()
    }

    /// `sum_ij d_i H_ij d_j` from the lower half: what is left of the diagonal blocks counts twice.
    fn band_loss(&self, weights: &[f32], quantized: &[f32]) -> f64 {
        let columns = self.features();
        let errors: Vec<f32> = weights.iter().zip(quantized).map(|(w, q)| w - q).collect();
        let rows = errors.len() / columns;
        let sums = self.gram.sums();
        let mut products = Vec::new();
        let mut loss = 0.0;
        for place in sums.block_rows() {
            let (first, height, width) = (place.rows.start, place.rows.len(), place.columns);
            products.resize(rows * width, 0.0);
            let left = Matrix::new(&errors[first..], rows, height, columns);
            let right = Matrix::new(sums.block_row(&place), height, width, width);
            multiply(MatrixMut::new(&mut products, rows, width, width), left, right, 1.0, Threads::One);
            for (errors, products) in errors.chunks(columns).zip(products.chunks(width)) {
                loss += 2.0 * dot(&errors[..first], &products[..first]);
                loss += dot(&errors[first..width], &products[first..]);
            }
        }
        loss
    }
}

/// Rows of weights that one thread takes at a time.
const BAND: usize = 128;

fn all_finite(sums: &[f32]) -> bool {
    sums.iter().all(|sum| sum.is_finite())
}

/// The products summed in eight lanes, which are added at the end.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut lanes = [0.0; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        lanes.iter_mut().zip(products).for_each(|(lane, product)| *lane += product);
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 31) % 613) as f32 / 300.0 - 1.0).collect()
    }

    #[test]
    fn hessian_loss_is_the_output_error() {
        for (rows, features, tokens) in [(3, 5, 7), (130, 40, 64), (9, 700, 20)] {
            let (x, w, q) = (values(tokens * features, 1), values(rows * features, 2), values(rows * features, 3));
            let mut hessian = Hessian::new(features);
            hessian.add(&x);
            let error = |row: usize, x: &[f32]| {
                let products =
                    (0..features).map(|i| f64::from(w[row * features + i] - q[row * features + i]) * f64::from(x[i]));
                products.sum::<f64>().powi(2)
            };
            let direct: f64 =
                (0..rows).flat_map(|row| x.chunks(features).map(move |x| (row, x))).map(|(r, x)| error(r, x)).sum();
            assert!((hessian.loss(&w, &q) / direct - 1.0).abs() < 1e-5);
        }
    }

    #[test]
    fn precisions_differ_by_input_rounding() {
        let (x, float) = (values(60 * 40, 1), values(60 * 40, 2));
        let [exact, bf16] = [Precision::F32, Precision::Bf16].map(|precision| {
            let mut hessian = Hessian::with_mismatch_in(40, precision);
            hessian.add_with_float(&x, &mut float.clone());
            hessian
        });
        let mismatches = |i: usize| (exact.mismatch().unwrap().sums()[i], bf16.mismatch().unwrap().sums()[i]);
        for i in 0..1600 {
            let sums = (exact.gram().sums().elements()[i], bf16.gram().sums().elements()[i]);
            for (exact, bf16) in [sums, mismatches(i)] {
                assert!((exact - bf16).abs() < 60.0 * 2.0 / 256.0, "{exact} {bf16}");
            }
        }
        assert_ne!(exact.gram().sums(), bf16.gram().sums());
    }

    #[test]
    fn input_mismatch_matches_its_definition_and_merges() {
        let (x, float) = (values(6 * 4, 1), values(6 * 4, 2));
        let mut whole = Hessian::with_mismatch(4);
        whole.add_with_float(&x, &mut float.clone());
        let expected: f32 = (0..6).map(|t| (float[t * 4 + 1] - x[t * 4 + 1]) * x[t * 4 + 2]).sum();
        assert!((whole.mismatch().unwrap().row(1)[2] - expected).abs() < 1e-5);
        let (mut first, mut second) = (Hessian::with_mismatch(4), Hessian::with_mismatch(4));
        first.add_with_float(&x[..8], &mut float[..8].to_vec());
        second.add_with_float(&x[8..], &mut float[8..].to_vec());
        first.merge(&second);
        assert_eq!(first.tokens(), 6);
        assert!((first.mismatch().unwrap().row(1)[2] - expected).abs() < 1e-5);
    }
}
