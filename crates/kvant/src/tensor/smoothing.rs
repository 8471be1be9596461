//! Scales of smoothing pairs and clipping thresholds, for weights in memory. Not which layers are pairs: callers know their model.

use super::fake::{fake_quantize, of_weight};
use super::matrix::Matrix;
use super::observer::TensorObserver;
use crate::error::{Error, ErrorKind};
use kvant_formats::algorithm::Algorithms;
use kvant_numeric::kernel::Elements;
use kvant_numeric::linalg::{self, MatrixMut, Precision, Weight};
use kvant_quant::rounding::TensorContext;
use kvant_quant::scheme::{Axis, Granularity, LayerScheme, Timing};
use kvant_quant::transform::{
    AnyTransform, ChannelStatistic, Loss, Measure, PairError, PairProblem, PairScales, TransformError, WeightStatistic,
};
use std::sync::atomic::{AtomicBool, Ordering};

/// Inputs that are kept as samples, at least, where there are as many.
const SAMPLES: usize = 512;

/// What transforms need to know of the inputs of layers that read the same: magnitudes of each channel, and samples, which are evenly
/// spread over all inputs.
#[derive(Clone, Debug)]
pub struct InputStatistics {
    channels: ChannelStatistic,
    samples: Vec<f32>,
    /// Every so many rows one is kept.
    stride: usize,
    rows: usize,
}

impl InputStatistics {
    /// The statistics of no inputs.
    pub fn new(features: usize) -> InputStatistics {
        InputStatistics { channels: ChannelStatistic::new(features), samples: Vec::new(), stride: 1, rows: 0 }
    }

    /// Input channels.
    pub fn features(&self) -> usize {
        self.channels.channels()
    }

    /// Adds inputs, a row for each token.
    ///
    /// # Errors
    /// *Invalid* for another number of features.
    pub fn add(&mut self, inputs: &Matrix<'_>) -> Result<(), Error> {
        let features = self.features();
        if inputs.shape().1 != features || features == 0 {
            let message = format!("inputs of {} features were given for statistics of {features}", inputs.shape().1);
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let values = inputs.values();
        self.channels.update(&values);
        for row in values.chunks_exact(features) {
            if self.rows.is_multiple_of(self.stride) {
                self.samples.extend_from_slice(row);
            }
            self.rows += 1;
            if self.samples.len() >= 2 * SAMPLES * features {
                self.thin_out();
            }
        }
        Ok(())
    }

    /// Keeps every other sample.
    fn thin_out(&mut self) {
        let features = self.features();
        let kept = self.samples.chunks_exact(features).step_by(2).flatten().copied().collect();
        self.samples = kept;
        self.stride *= 2;
    }
}

/// Layers that read the same inputs, whose weights' columns a transform scales.
#[derive(Clone, Copy, Debug)]
pub struct SmoothingPair<'a> {
    /// The weights, `[outputs, features]`.
    pub weights: &'a [Matrix<'a>],
    /// Their scheme.
    pub scheme: &'a LayerScheme,
    /// Their inputs.
    pub inputs: &'a InputStatistics,
    /// Is set to stop a search.
    pub cancelled: &'a AtomicBool,
}

/// The scales that a transform of `kvant list algorithms` (`smoothquant:alpha=0.6`, `awq`) finds for a pair: columns of weights are
/// multiplied by them, and what feeds the layers is divided. `None` where the pair is best left as it is, or cannot be scaled.
///
/// # Errors
/// *Usage* for what is no transform and for wrong options, *interrupted* once the pair is cancelled, otherwise those of rounding.
pub fn smoothing_scales(pair: SmoothingPair<'_>, algorithm: &str) -> Result<Option<Vec<f32>>, Error> {
    let transform = transform_of(algorithm)?;
    let mut problem = Problem { pair, reference: Vec::new(), failure: None };
    match transform.find(&mut problem) {
        Ok(PairScales { scales, .. }) => Ok(Some(scales)),
        Err(PairError::Unscaled(_)) => Ok(None),
        Err(PairError::Stopped) => {
            Err(problem.failure.unwrap_or_else(|| Error::new(ErrorKind::Interrupted, "interrupted")))
        }
    }
}

/// A weight after the search of clipping thresholds that belongs to a transform; `None` for transforms without one.
///
/// # Errors
/// As [`smoothing_scales`].
pub fn clipped(
    weight: &Matrix<'_>,
    scheme: &LayerScheme,
    inputs: &InputStatistics,
    algorithm: &str,
) -> Result<Option<Vec<f32>>, Error> {
    let Some(clip) = transform_of(algorithm)?.clip() else { return Ok(None) };
    let of_transform =
        |error: TransformError| Error::new(ErrorKind::Invalid, format!("the tensor cannot be clipped: {error}"));
    let clipping = clip.prepare(&inputs.samples, inputs.features(), scheme.weight).map_err(of_transform)?;
    let mut values = weight.to_values();
    let limits = clipping.limits(&values, TensorContext::new(weight.dtype().arithmetic())).map_err(of_transform)?;
    clipping.clip(&mut values, &limits);
    Ok(Some(values))
}

fn transform_of(algorithm: &str) -> Result<AnyTransform, Error> {
    let mut algorithms = Algorithms::of_list("the algorithm", &[algorithm])?;
    let transform = algorithms.transforms.pop().filter(|_| algorithms.transforms.is_empty());
    transform.ok_or_else(|| {
        let error = Error::new(ErrorKind::Usage, format!("`{algorithm}` is not a transform"));
        error.with_hint(Some("name one, such as smoothquant or awq".to_owned()))
    })
}

/// A pair whose outputs are computed from samples.
struct Problem<'a> {
    pair: SmoothingPair<'a>,
    /// The outputs of the float weights, one after the other; empty before they are needed.
    reference: Vec<f32>,
    failure: Option<Error>,
}

impl Problem<'_> {
    fn stop(&mut self, error: Error) -> PairError {
        self.failure = Some(error);
        PairError::Stopped
    }

    /// The outputs of all weights, whose elements `values` gives.
    fn outputs(
        &self,
        inputs: &[f32],
        values: impl Fn(&Matrix<'_>) -> Result<Vec<f32>, Error>,
    ) -> Result<Vec<f32>, Error> {
        let columns = self.pair.inputs.features();
        let tokens = inputs.len() / columns.max(1);
        let mut outputs = Vec::new();
        for matrix in self.pair.weights {
            let weight = values(matrix)?;
            let (rows, first) = (matrix.shape().0, outputs.len());
            outputs.resize(first + tokens * rows, 0.0);
            let out = MatrixMut::new(&mut outputs[first..], tokens, rows, rows);
            let x = linalg::Matrix::new(inputs, tokens, columns, columns);
            linalg::linear(out, x, Weight::new(Elements::Values(&weight), rows, columns), None, Precision::F32);
        }
        Ok(outputs)
    }

    /// The outputs after quantization under scales.
    fn trial(&self, scales: &[f32], with_inputs: bool) -> Result<Vec<f32>, Error> {
        let SmoothingPair { scheme, inputs, .. } = self.pair;
        let columns = inputs.features();
        let input_scheme = scheme.input.filter(|_| with_inputs);
        let Some(input_scheme) = input_scheme else {
            return self.outputs(&inputs.samples, |matrix| {
                let mut values = self.quantized(matrix, scales)?;
                per_column(&mut values, columns, scales, |value, scale| value / scale);
                Ok(values)
            });
        };
        let mut samples = inputs.samples.clone();
        per_column(&mut samples, columns, scales, |value, scale| value / scale);
        let bytes: Vec<u8> = samples.iter().flat_map(|value| value.to_le_bytes()).collect();
        let matrix = Matrix::new("F32", &bytes, samples.len() / columns, columns)?;
        let parameters = match input_scheme.timing {
            Timing::Dynamic => None,
            Timing::Static | Timing::Local => {
                let mut observer = TensorObserver::new(&input_scheme.scheme.to_string())?;
                observer.update(&matrix);
                Some(observer.parameters()?)
            }
        };
        let rounded = fake_quantize(&matrix, &input_scheme.to_string(), parameters)?;
        self.outputs(&rounded, |matrix| self.quantized(matrix, scales))
    }

    /// A weight whose columns are scaled, after quantization.
    fn quantized(&self, matrix: &Matrix<'_>, scales: &[f32]) -> Result<Vec<f32>, Error> {
        let (rows, columns) = matrix.shape();
        let mut values = matrix.to_values();
        per_column(&mut values, columns, scales, |value, scale| value * scale);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        of_weight(&Matrix::new("F32", &bytes, rows, columns)?, self.pair.scheme.weight)
    }
}

fn per_column(values: &mut [f32], columns: usize, scales: &[f32], change: impl Fn(f32, f32) -> f32) {
    for row in values.chunks_mut(columns.max(1)) {
        row.iter_mut().zip(scales).for_each(|(value, scale)| *value = change(*value, *scale));
    }
}

impl PairProblem for Problem<'_> {
    fn inputs(&self) -> &ChannelStatistic {
        &self.pair.inputs.channels
    }

    fn weights(&mut self) -> Result<WeightStatistic, PairError> {
        let columns = self.pair.inputs.features();
        let group = match self.pair.scheme.weight.granularity() {
            Some(Granularity::Group { axis: Axis::Columns, size }) => size.map_or(columns, |size| size.get() as usize),
            _ => columns,
        };
        let mut statistic = WeightStatistic::new(columns, group);
        self.pair.weights.iter().for_each(|weight| statistic.update(&weight.values()));
        Ok(statistic)
    }

    fn within_rows(&mut self, scales: Vec<f32>) -> Result<Vec<f32>, PairError> {
        // What feeds the layers is a norm, whose weights are not quantized, or judged by the caller.
        Ok(scales)
    }

    fn loss(&mut self, scales: &[f32], measure: Measure) -> Result<f64, PairError> {
        if self.pair.cancelled.load(Ordering::Relaxed) {
            return Err(PairError::Stopped);
        }
        if self.reference.is_empty() {
            let reference = self.outputs(&self.pair.inputs.samples, |matrix| Ok(matrix.to_values()));
            self.reference = reference.map_err(|error| self.stop(error))?;
        }
        let outputs = self.trial(scales, measure.with_inputs).map_err(|error| self.stop(error))?;
        Ok(Loss::sum(measure.loss, &self.reference, &outputs) / self.reference.len().max(1) as f64)
    }
}
