//! How much accuracy a graph loses: a metric of the float graph, measured first, and of every candidate.

use super::command::MetricCommand;
use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Stage, Unit};
use crate::job::Job;
use crate::onnx::data::{GraphData, opened, source};
use crate::onnx::measure::SampleOrigin;
use crate::onnx::read;
use crate::paths::full_path;
use kvant_container::Remedy;
use kvant_container::onnx::ModelProto;
use kvant_onnx::data::Samples;
use kvant_onnx::error::QuantizeError;
use kvant_onnx::evaluation::{TopClasses, widened};
use kvant_quant::counts::number;
use serde::Serialize;
use std::ops::ControlFlow;
use std::path::Path;

/// Samples to measure on at most, of those that were not calibrated on.
const MOST: usize = 1000;
/// The part of a metric by which two runs on the float graph may differ: sums in another order are not other results.
const REPRODUCIBLE: f64 = 1e-6;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum MetricKind {
    /// The number that a command prints.
    #[serde(rename = "command")]
    Command,
    /// The share of samples whose label is the likeliest class.
    #[serde(rename = "top-1")]
    Top1,
    /// The share of rows whose likeliest class is that of the float graph.
    #[serde(rename = "top-1 agreement")]
    Agreement,
}

impl MetricKind {
    /// As reports name it.
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Command => "metric",
            MetricKind::Top1 => "top-1",
            MetricKind::Agreement => "top-1 agreement",
        }
    }
}

/// The float graph's accuracy, and the way to measure that of others.
pub struct Gate<'a, 'e> {
    job: &'a Job,
    reporter: &'a Reporter<'e>,
    measure: Measure,
    /// What is measured.
    pub kind: MetricKind,
    /// The metric of the float graph.
    pub reference: f64,
    /// The largest drop.
    pub max_drop: f64,
}

enum Measure {
    Command(MetricCommand),
    Classes(Box<Classes>),
}

/// The float graph's classes, and the samples.
struct Classes {
    kept: TopClasses,
    samples: Samples,
    origin: SampleOrigin,
}

impl<'a, 'e> Gate<'a, 'e> {
    /// Measures the float graph; `None` without a limit.
    ///
    /// # Errors
    /// Those of the command or the data, and a command that prints another number when it runs again.
    pub fn open(job: &'a Job, graph: &ModelProto, reporter: &'a Reporter<'e>) -> Result<Option<Gate<'a, 'e>>, Error> {
        let quality = &job.limits.quality;
        let Some(max_drop) = quality.max_drop else { return Ok(None) };
        if let Some(metric) = &quality.metric {
            let command = MetricCommand::new(metric)?;
            let path = full_path(&job.source.model);
            let values = [command.measure(&path, reporter.cancel())?, command.measure(&path, reporter.cancel())?];
            let reference = reproduced(values)?;
            let (measure, kind) = (Measure::Command(command), MetricKind::Command);
            return Ok(Some(Gate { job, reporter, measure, kind, reference, max_drop }));
        }
        let classes = Classes::of(job, graph, reporter)?;
        let rows = classes.kept.rows();
        if max_drop > 0.0 && (rows as f64) * max_drop < 1.0 {
            reporter.warning(&format!(
                "{} cannot show a drop of {max_drop}: one of them is {:.4}; give more with ‹eval›",
                number(rows, "prediction"),
                1.0 / rows as f64
            ));
        }
        let kind = if quality.labels.is_some() { MetricKind::Top1 } else { MetricKind::Agreement };
        let measure = Measure::Classes(Box::new(classes));
        let mut gate = Gate { job, reporter, measure, kind, reference: 1.0, max_drop };
        if kind == MetricKind::Top1 {
            gate.reference = gate.of_model(&widened(graph.clone()).map_err(QuantizeError::from)?)?;
            if gate.reference == 0.0 {
                let error = Error::new(
                    ErrorKind::Invalid,
                    "the float graph predicts none of the labels: it has nothing to lose",
                );
                let way = Remedy::text("check that the labels belong to these samples, in their order");
                return Err(error.with_remedies(vec![way]));
            }
        }
        Ok(Some(gate))
    }

    /// Measures a graph.
    ///
    /// # Errors
    /// Those of the command, or of the engine.
    pub fn measure(&mut self, graph: &Path) -> Result<f64, Error> {
        match &self.measure {
            Measure::Command(command) => command.measure(&full_path(graph), self.reporter.cancel()),
            Measure::Classes(_) => self.of_model(&read(graph)?),
        }
    }

    /// By how much a metric is worse than that of the float graph.
    pub fn drop(&self, metric: f64) -> f64 {
        let is_lower_better = self.job.limits.quality.metric.as_ref().is_some_and(|metric| metric.lower_is_better);
        if is_lower_better { metric - self.reference } else { self.reference - metric }
    }

    /// Returns whether a drop is small enough.
    pub fn accepts(&self, drop: f64) -> bool {
        drop <= self.max_drop + 1e-9
    }

    /// The number of samples and their origin, if Kvant measures.
    pub fn samples(&self) -> Option<(usize, SampleOrigin)> {
        match &self.measure {
            Measure::Command(_) => None,
            Measure::Classes(classes) => Some((classes.samples.len(), classes.origin)),
        }
    }

    fn of_model(&mut self, graph: &ModelProto) -> Result<f64, Error> {
        let Measure::Classes(classes) = &mut self.measure else {
            return Err(Error::internal("a graph in memory was given to a command"));
        };
        let runtime = self.job.limits.runtime();
        let progress = self.reporter.stage(Stage::Evaluation, Unit::Samples);
        let (mut watch, all) = (progress.watch_cancelled(), classes.samples.len() as u64);
        let found = classes.kept.measure(graph, &mut classes.samples, &runtime, &mut |done| watch(done as u64, all))?;
        Ok(found.top1.unwrap_or(found.agreement))
    }
}

impl Classes {
    fn of(job: &Job, graph: &ModelProto, reporter: &Reporter<'_>) -> Result<Classes, Error> {
        let reference = widened(graph.clone()).map_err(QuantizeError::from)?;
        let (mut samples, origin) = samples(job, &reference, reporter)?;
        let labels = match (&job.limits.quality.labels, &job.limits.quality.eval) {
            (Some(name), Some(path)) => match GraphData::of_path(path) {
                GraphData::Samples(source) => Some(source.labels(name)?),
                GraphData::Text(_) => None,
            },
            _ => None,
        };
        let runtime = job.limits.runtime();
        let progress = reporter.stage(Stage::Evaluation, Unit::Samples);
        let (mut watch, all) = (progress.watch_cancelled(), samples.len() as u64);
        let mut done = |done: usize| -> ControlFlow<()> { watch(done as u64, all) };
        let kept = TopClasses::new(reference, &mut samples, labels, &runtime, &mut done)?;
        Ok(Classes { kept, samples, origin })
    }
}

/// The samples of ‹eval›, else those behind the ones of calibration, else these.
fn samples(job: &Job, graph: &ModelProto, reporter: &Reporter<'_>) -> Result<(Samples, SampleOrigin), Error> {
    let quality = &job.limits.quality;
    if let Some(path) = &quality.eval {
        let GraphData::Samples(source) = GraphData::of_path(path) else { return Err(no_text()) };
        let samples = opened(&source, &job.data, &graph.graph, None, quality.labels.clone())?;
        return Ok((samples, SampleOrigin::Given));
    }
    let data = source(&job.data)?.ok_or_else(no_samples)?;
    if matches!(data, GraphData::Text(_)) {
        return Err(no_text());
    }
    let used = job.data.num_samples;
    if let Some(rest) = data.behind(job, &graph.graph, used, MOST)? {
        return Ok((rest, SampleOrigin::HeldOut));
    }
    reporter.warning(
        "accuracy is measured on the samples of calibration, because the data have no others: give some with ‹eval›, \
         or calibrate on fewer with ‹num-samples›",
    );
    Ok((data.first(job, &graph.graph, used)?, SampleOrigin::Calibration))
}

/// The number that two runs on the float graph have in common.
fn reproduced(values: [f64; 2]) -> Result<f64, Error> {
    let [first, second] = values;
    if (first - second).abs() <= REPRODUCIBLE * first.abs().max(second.abs()) {
        return Ok(first);
    }
    let message = format!("‹metric› gives {first} and then {second} for the same float graph");
    let way = Remedy::text("let the command measure all data, or the same part of them, with a fixed seed");
    Err(Error::new(ErrorKind::Invalid, message).with_remedies(vec![way]))
}

pub(super) fn no_samples() -> Error {
    let error = Error::new(ErrorKind::Usage, "‹max-drop› needs samples to measure the result on");
    let metric = Remedy::setting("metric", "name a command that measures it with ‹metric›");
    error.with_remedies(vec![Remedy::setting("eval", "give some with ‹eval›"), metric])
}

pub(super) fn no_text() -> Error {
    let error = Error::new(ErrorKind::Usage, "‹max-drop› does not measure graphs on text");
    error.with_remedies(vec![Remedy::setting("metric", "name a command that measures them with ‹metric›")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_that_varies_is_refused() {
        assert_eq!(reproduced([0.5, 0.5 + 1e-9]), Ok(0.5));
        assert_eq!(reproduced([0.0, 0.0]), Ok(0.0));
        let error = reproduced([0.5, 0.51]).unwrap_err();
        assert!(error.message.contains("0.5 and then 0.51") && error.hint.is_some(), "{error}");
    }
}
