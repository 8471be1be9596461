//! The result of an evaluation, as printed and written.

use serde::Serialize;

use kvant_quant::distribution::Distribution;

use super::classes::{Classes, RowClasses};
use super::optimized::Found;
use super::pairs::Pair;
use super::shown::{OutputHistogram, ShownImage};
use super::statistics::Statistics;
use super::timing::Timing;

/// SQNR in dB by which a session without graph optimizations has to be better to be reported.
const MUCH_BETTER_DB: f64 = 1.0;

/// A quantized model against its float model on data. Numbers that are not finite are `null` in JSON: an SQNR is infinite where
/// nothing differs.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The engine of the quantized model.
    pub engine: String,
    /// The engine of the float model.
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
    /// The reason that ONNX Runtime does not run the quantized model with its graph optimizations, the default of programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimized_fails: Option<String>,
    /// Tensors both models have that are not compared: an algorithm has scaled or rotated their channels.
    pub scaled_tensors: usize,
    /// The tensors both models have, the most damaged first.
    pub tensors: Vec<TensorReport>,
    /// Images of the data with the classes of both models, where a report shows them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ShownImage>,
    /// The classes of each row of the output that has rows of classes.
    #[serde(skip)]
    pub(super) rows: Vec<RowClasses>,
    /// How long both models take, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Timing>,
}

/// A tensor of the quantized model against that of the float model, over all samples.
#[derive(Debug, Clone, Serialize)]
pub struct TensorReport {
    /// Its name in the float model.
    pub name: String,
    /// The operator that makes it in the float model; empty for inputs.
    pub op: String,
    /// `10 log10(sum r^2 / sum (r - q)^2)`. Of an output that ONNX Runtime computes, this and the other numbers are those of a
    /// session with all graph optimizations, which is what programs open by default, with the integer kernels that it has
    /// for this processor.
    pub sqnr_db: f64,
    /// The same of an output without graph optimizations, which is what its codes allow: integer kernels lose the rest. `None` of
    /// other engines and of tensors inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unoptimized_sqnr_db: Option<f64>,
    /// The cosine of the angle between the values as vectors.
    pub cosine: f64,
    /// The largest difference.
    pub max_error: f64,
    /// Values that are NaN or infinite where the float model has numbers.
    #[serde(skip_serializing_if = "is_zero")]
    pub non_finite: u64,
    /// The values of an output in both models, where a report shows them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histogram: Option<OutputHistogram>,
    /// The distributions that the histogram shows.
    #[serde(skip)]
    pub(super) distributions: Option<Box<[Distribution; 2]>>,
}

impl Report {
    pub(super) fn new(
        engines: (String, String),
        samples: usize,
        outputs: Vec<(Pair, Statistics)>,
        tensors: Vec<(Pair, Statistics)>,
        classes: &Classes,
        optimized: Option<&Found>,
    ) -> Self {
        let is_known = |statistics: &Statistics| statistics.count() > 0;
        let tensors = tensors.into_iter().filter(|(_, statistics)| is_known(statistics));
        let mut tensors: Vec<TensorReport> = tensors.map(|(pair, found)| TensorReport::new(pair, &found)).collect();
        let classes = optimized.map_or(classes, |optimized| &optimized.classes);
        let optimized = |at: usize| optimized.and_then(|found| found.outputs.get(at)).filter(|found| is_known(found));
        tensors.sort_by(|a, b| damage(a).total_cmp(&damage(b)));
        let (top1, top5) = classes.accuracy();
        let (reference_top1, reference_top5) = classes.reference_accuracy();
        let (top1_agreement, top5_agreement) = classes.agreement();
        let (reference_engine, engine) = engines;
        let outputs = outputs.into_iter().enumerate().filter(|(_, (_, statistics))| is_known(statistics));
        let outputs = outputs.map(|(at, (pair, plain))| match optimized(at) {
            Some(found) => TensorReport::of_output(pair, found, plain.sqnr_db()),
            None => TensorReport::new(pair, &plain),
        });
        Self {
            engine,
            reference_engine,
            samples,
            outputs: outputs.collect(),
            top1,
            top5,
            reference_top1,
            reference_top5,
            top1_agreement,
            top5_agreement,
            optimized_fails: None,
            scaled_tensors: 0,
            images: Vec::new(),
            rows: classes.each().to_vec(),
            tensors,
            time: None,
        }
    }
}

/// Returns whether nothing is to be reported.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// The SQNR, with NaN as the worst.
fn damage(tensor: &TensorReport) -> f64 {
    if tensor.sqnr_db.is_nan() { f64::NEG_INFINITY } else { tensor.sqnr_db }
}

impl TensorReport {
    /// An output, and the SQNR that it has without graph optimizations.
    fn of_output(pair: Pair, statistics: &Statistics, unoptimized_db: f64) -> Self {
        Self { unoptimized_sqnr_db: Some(unoptimized_db), ..Self::new(pair, statistics) }
    }

    /// The SQNR without graph optimizations, where it is much better.
    pub fn much_better_db(&self) -> Option<f64> {
        // Nobody asks beyond it: sums in another order differ by as much.
        let bounded = |db: f64| db.min(100.0);
        let better = self.unoptimized_sqnr_db.filter(|db| !db.is_nan())?;
        let is_close = bounded(self.sqnr_db) >= bounded(better) - MUCH_BETTER_DB && !self.sqnr_db.is_nan();
        (!is_close).then_some(better)
    }

    fn new(pair: Pair, statistics: &Statistics) -> Self {
        Self {
            name: pair.reference,
            op: pair.op,
            sqnr_db: statistics.sqnr_db(),
            unoptimized_sqnr_db: None,
            cosine: statistics.cosine(),
            max_error: statistics.max_error(),
            non_finite: statistics.non_finite(),
            histogram: None,
            distributions: statistics.distributions().cloned().map(Box::new),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statistics(value: f32) -> Statistics {
        let mut made = Statistics::default();
        made.add(&[1.0], &[value]);
        made
    }

    /// A report of an output that is so far off without graph optimizations, and with them.
    fn output(plain: f32, optimized: Option<f32>) -> TensorReport {
        let name = || "y".to_owned();
        let pair = Pair { reference: name(), quantized: name(), op: String::new() };
        let mut classes = Classes::default();
        classes.add(2, &[0.0, 1.0], &[1.0, 0.0], None);
        let found = optimized.map(|value| Found { outputs: vec![statistics(value)], classes, rows: 1 });
        let outputs = vec![(pair, statistics(plain))];
        let engines = (String::new(), String::new());
        let mut report = Report::new(engines, 1, outputs, Vec::new(), &Classes::default(), found.as_ref());
        assert_eq!(report.top1_agreement, optimized.map(|_| 0.0), "classes are of the same session");
        report.outputs.remove(0)
    }

    #[test]
    fn reported_sqnr_is_that_of_the_optimized_session() {
        let close = |db: f64, expected: f64| (db - expected).abs() < 1e-3;
        let saturated = output(1.01, Some(1.1));
        assert!(close(saturated.sqnr_db, 20.0) && close(saturated.much_better_db().unwrap(), 40.0), "{saturated:?}");
        assert!((saturated.max_error - 0.1).abs() < 1e-6, "{saturated:?}");
        let alone = output(1.01, None);
        assert!(close(alone.sqnr_db, 40.0) && alone.unoptimized_sqnr_db.is_none());
        let other = output(1.1, Some(1.01));
        assert!(close(other.sqnr_db, 40.0) && other.much_better_db().is_none());
        assert!(output(1.01, Some(f32::NAN)).much_better_db().is_some());
        assert!(output(1.0, Some(1.0 + 1e-7)).much_better_db().is_none(), "rounding of sums");
    }
}
