//! A tensor and the products that read it, as transforms see them. Not how scales are found, nor where they go.

use std::sync::atomic::{AtomicBool, Ordering};

use kvant_container::onnx::ModelProto;
use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, multiply};
use kvant_quant::transform::{ChannelStatistic, Loss, Measure, PairError, PairProblem, WeightStatistic};

use super::row_rounding::RowRounding;
use super::seen::Inputs;
use super::weight_rows::all_rows;
use crate::algorithm::input_scaling::SharedInputGroup;
use crate::error::QuantizeError;
use crate::recipe::Recipe;

/// A tensor and the products that read it.
pub(super) struct ReaderPair<'a> {
    inputs: &'a Inputs,
    channels: usize,
    /// The weights, a row of channels for each output.
    weights: Vec<Vec<f32>>,
    rounding: RowRounding,
    /// How the inputs are rounded, if they are.
    input_rounding: Option<RowRounding>,
    /// What the float products make of the sampled rows, once it was asked for.
    reference: Option<Vec<Vec<f32>>>,
    cancelled: &'a AtomicBool,
}

impl<'a> ReaderPair<'a> {
    pub fn new(
        readers: &SharedInputGroup,
        model: &ModelProto,
        inputs: &'a Inputs,
        recipe: &Recipe,
        cancelled: &'a AtomicBool,
    ) -> Result<Self, QuantizeError> {
        let channels = readers.channels;
        Ok(Self {
            inputs,
            channels,
            weights: all_rows(&model.graph, readers)?,
            rounding: RowRounding::of(recipe, channels),
            input_rounding: RowRounding::of_inputs(recipe, channels),
            reference: None,
            cancelled,
        })
    }

    /// Refuses scales that cannot be applied.
    pub fn check(&self, scales: &[f32]) -> Result<(), PairError> {
        let positive = scales.iter().all(|scale| scale.is_finite() && *scale > 0.0);
        match positive && scales.len() == self.channels {
            true => Ok(()),
            false => Err(PairError::Unscaled(format!("scales are not {} positive numbers", self.channels))),
        }
    }

    /// What the products make of the sampled rows, each channel divided by its scale and rounded if `rounds`, with these weights.
    fn outputs(&self, scales: Option<&[f32]>, rounds: bool, weights: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let mut rows = self.inputs.sampled_rows().to_vec();
        if let Some(scales) = scales {
            rows.iter_mut().zip(scales.iter().cycle()).for_each(|(value, scale)| *value /= scale);
        }
        if let (true, Some(rounding)) = (rounds, self.input_rounding) {
            rows = rounding.nearest(&rows);
        }
        let (columns, height) = (self.channels, rows.len() / self.channels);
        let product = |weight: &Vec<f32>| {
            let outputs = weight.len() / columns;
            let mut product = vec![0.0; height * outputs];
            let left = Matrix::new(&rows, height, columns, columns);
            let right = Matrix::new(weight, outputs, columns, columns).transposed();
            multiply(MatrixMut::new(&mut product, height, outputs, outputs), left, right, 1.0, Threads::Pool);
            product
        };
        weights.iter().map(product).collect()
    }
}

impl PairProblem for ReaderPair<'_> {
    fn inputs(&self) -> &ChannelStatistic {
        &self.inputs.statistic
    }

    fn weights(&mut self) -> Result<WeightStatistic, PairError> {
        let mut statistic = WeightStatistic::new(self.channels, self.rounding.group());
        self.weights.iter().for_each(|rows| statistic.update(rows));
        Ok(statistic)
    }

    /// The scales as they are: the inverse goes into a normalization, a constant or a Mul more often than into a weight.
    fn within_rows(&mut self, scales: Vec<f32>) -> Result<Vec<f32>, PairError> {
        Ok(scales)
    }

    /// The sum over all outputs of the products: on all calibration data where the products of inputs were added up, else on sampled
    /// rows, whose range is that of static scales.
    fn loss(&mut self, scales: &[f32], measure: Measure) -> Result<f64, PairError> {
        self.check(scales)?;
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(PairError::Stopped);
        }
        let rounds_inputs = measure.with_inputs && self.input_rounding.is_some();
        if let Some(hessian) = &self.inputs.hessian
            && measure.loss == Loss::Mse
            && !rounds_inputs
        {
            let loss = |weight: &Vec<f32>| hessian.loss(weight, &self.rounding.rounded(weight, scales));
            return Ok(self.weights.iter().map(loss).sum());
        }
        if self.inputs.sampled_rows().is_empty() {
            return Err(PairError::Unscaled("the transform does not say that it needs trials".to_owned()));
        }
        let reference = self.reference.take().unwrap_or_else(|| self.outputs(None, false, &self.weights));
        let rounded: Vec<Vec<f32>> = self.weights.iter().map(|weight| self.rounding.scaled(weight, scales)).collect();
        let outputs = self.outputs(Some(scales), rounds_inputs, &rounded);
        let loss = reference.iter().zip(&outputs).map(|(float, rounded)| measure.loss.sum(float, rounded)).sum();
        self.reference = Some(reference);
        Ok(loss)
    }
}
