//! The recipes that were tried and what was measured of each.

use super::gate::MetricKind;
use crate::onnx::measure::SampleOrigin;
use crate::text::size;
use serde::{Deserialize, Serialize};

/// A layer with wider types than those of the recipe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WidenedLayer {
    /// The layer.
    pub layer: String,
    /// Its types, or `float`.
    pub types: String,
}

/// A recipe that was tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// What it adds to the recipe of the job.
    pub recipe: String,
    /// The metric, if it was measured.
    pub value: Option<f64>,
    /// By how much that is worse than the float graph's.
    pub drop: Option<f64>,
    /// The SQNR of the worst output in dB, if it was measured and is finite.
    pub sqnr_db: Option<f64>,
    /// Bytes of the graph's files.
    pub bytes: Option<u64>,
    /// The time that it took to make and measure it.
    pub seconds: f64,
    /// The layers with other types than the recipe's.
    pub widened: Vec<WidenedLayer>,
    /// The reason that there is no such graph, or that it is rejected for another reason than the metric.
    pub problem: Option<String>,
    /// Whether it keeps all limits.
    pub accepted: bool,
}

impl Attempt {
    /// Returns whether it loses less than another one: by the metric, or where that is the same by SQNR.
    pub fn is_better_than(&self, other: &Attempt) -> bool {
        let loss = |attempt: &Attempt| {
            let sqnr = attempt.sqnr_db.unwrap_or(f64::NEG_INFINITY);
            (attempt.drop.unwrap_or(f64::INFINITY), -sqnr)
        };
        loss(self) < loss(other)
    }

    /// What was measured, in words.
    pub fn spelled(&self, metric: Option<MetricKind>) -> String {
        let name = metric.map_or("", MetricKind::name);
        let value = self.value.zip(self.drop).map(|(value, drop)| format!("{name} {value:.4}, drop {drop:.4}"));
        let sqnr = self.sqnr_db.map(|sqnr| format!("{sqnr:.1} dB"));
        let bytes = self.bytes.map(size::bytes);
        let problem = self.problem.clone();
        [value, sqnr, bytes, problem].into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

/// A search for a recipe that loses little enough.
#[derive(Clone, Debug, Serialize)]
pub struct AccuracyReport {
    /// What was measured; `None` without ‹max-drop›.
    pub metric: Option<MetricKind>,
    /// The metric of the float graph.
    pub reference: Option<f64>,
    /// The largest drop that was allowed.
    pub max_drop: Option<f64>,
    /// Samples that Kvant measured on.
    pub samples: Option<usize>,
    /// Their origin.
    pub samples_from: Option<SampleOrigin>,
    /// All recipes in the order in which they were tried. The last one is that of the output, if there is one.
    pub attempts: Vec<Attempt>,
}

impl AccuracyReport {
    /// The recipe that loses least.
    pub fn best(&self) -> Option<&Attempt> {
        self.attempts.iter().reduce(|best, next| if next.is_better_than(best) { next } else { best })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(drop: Option<f64>, sqnr_db: Option<f64>) -> Attempt {
        Attempt {
            recipe: String::new(),
            value: drop.map(|drop| 0.9 - drop),
            drop,
            sqnr_db,
            bytes: Some(2000),
            seconds: 1.0,
            widened: Vec::new(),
            problem: None,
            accepted: false,
        }
    }

    #[test]
    fn the_smallest_drop_is_best_then_the_highest_sqnr() {
        let attempts =
            vec![attempt(Some(0.02), Some(30.0)), attempt(Some(0.01), Some(20.0)), attempt(None, Some(50.0))];
        let metric = Some(MetricKind::Command);
        let mut report = AccuracyReport {
            metric,
            reference: Some(0.9),
            max_drop: Some(0.005),
            samples: None,
            samples_from: None,
            attempts,
        };
        assert_eq!(report.best().unwrap().drop, Some(0.01));
        assert_eq!(report.best().unwrap().spelled(metric), "metric 0.8900, drop 0.0100, 20.0 dB, 2.0 kB");
        report.attempts = vec![attempt(Some(0.01), Some(20.0)), attempt(Some(0.01), Some(25.0))];
        assert_eq!(report.best().unwrap().sqnr_db, Some(25.0));
        report.attempts = vec![attempt(None, None), attempt(None, Some(10.0)), attempt(None, Some(20.0))];
        assert_eq!(report.best().unwrap().sqnr_db, Some(20.0));
    }
}
