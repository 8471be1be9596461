//! What an evaluation finds, as it is printed and written.

use serde::Serialize;

use super::classes::Classes;
use super::pairs::Pair;
use super::statistics::Statistics;

/// A quantized model against its float model on data. Numbers that are not finite are `null` in JSON: an SQNR is infinite where
/// nothing differs.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What ran the quantized model.
    pub engine: String,
    /// What ran the float model.
    pub reference_engine: String,
    /// Number of samples.
    pub samples: usize,
    /// The outputs, in the float model's order.
    pub outputs: Vec<TensorReport>,
    /// Share of samples whose label the quantized model finds most likely.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top1: Option<f64>,
    /// Share of samples whose label is among the quantized model's five most likely.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top5: Option<f64>,
    /// As `top1`, of the float model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_top1: Option<f64>,
    /// As `top5`, of the float model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_top5: Option<f64>,
    /// Share of samples for which both models find the same class most likely.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top1_agreement: Option<f64>,
    /// Share of samples for which the float model's class is among the quantized model's five most likely.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top5_agreement: Option<f64>,
    /// Why ONNX Runtime does not run the quantized model with its graph optimizations, which programs load models with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimized_fails: Option<String>,
    /// Tensors both models have that are not compared: an algorithm has scaled or rotated their channels.
    pub scaled_tensors: usize,
    /// The tensors both models have, the most damaged first.
    pub tensors: Vec<TensorReport>,
}

/// A tensor of the quantized model against that of the float model, over all samples.
#[derive(Debug, Clone, Serialize)]
pub struct TensorReport {
    /// Its name in the float model.
    pub name: String,
    /// The operator that makes it in the float model; empty for inputs.
    pub op: String,
    /// `10 log10(sum r^2 / sum (r - q)^2)`.
    pub sqnr_db: f64,
    /// The same of an output where ONNX Runtime runs the quantized model with all its graph optimizations, and so with the
    /// integer kernels that it has for this processor; `None` of other engines and of tensors inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimized_sqnr_db: Option<f64>,
    /// The cosine of the angle between the values as vectors.
    pub cosine: f64,
    /// The largest difference.
    pub max_error: f64,
}

impl Report {
    pub(super) fn new(
        engines: (String, String),
        samples: usize,
        outputs: Vec<(Pair, Statistics)>,
        tensors: Vec<(Pair, Statistics)>,
        classes: &Classes,
    ) -> Self {
        let report = |found: Vec<(Pair, Statistics)>| -> Vec<TensorReport> {
            found.into_iter().filter(|(_, statistics)| statistics.count() > 0).map(TensorReport::new).collect()
        };
        let mut tensors = report(tensors);
        tensors.sort_by(|a, b| damage(a).total_cmp(&damage(b)));
        let (top1, top5) = classes.accuracy();
        let (reference_top1, reference_top5) = classes.reference_accuracy();
        let (top1_agreement, top5_agreement) = classes.agreement();
        let (reference_engine, engine) = engines;
        let outputs = report(outputs);
        Self {
            engine,
            reference_engine,
            samples,
            outputs,
            top1,
            top5,
            reference_top1,
            reference_top5,
            top1_agreement,
            top5_agreement,
            optimized_fails: None,
            scaled_tensors: 0,
            tensors,
        }
    }
}

/// The SQNR, with values that are no numbers as the worst.
fn damage(tensor: &TensorReport) -> f64 {
    if tensor.sqnr_db.is_nan() { f64::NEG_INFINITY } else { tensor.sqnr_db }
}

impl TensorReport {
    fn new((pair, statistics): (Pair, Statistics)) -> Self {
        Self {
            name: pair.reference,
            op: pair.op,
            sqnr_db: statistics.sqnr_db(),
            optimized_sqnr_db: None,
            cosine: statistics.cosine(),
            max_error: statistics.max_error(),
        }
    }
}
