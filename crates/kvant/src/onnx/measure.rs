//! Quality of a quantized graph: it runs beside its float graph, one sample at a time, before it is committed.

use super::data::{GraphData, source};
use super::sequences::TextSequences;
use super::text::{TextQuality, distance};
use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Stage, Unit};
use crate::job::Job;
use kvant_container::onnx::{ModelProto, Spill};
use kvant_onnx::algorithm::{Algorithm, Stage as AlgorithmStage};
use kvant_onnx::data::{Distribution, SampleSource, Samples};
use kvant_onnx::evaluation::{
    Compared, Concern, EvaluationError, Loss, Remedy, Report, ShownImage, TensorReport, evaluate, note_scaled,
    remedies, scaled_tensors, widened,
};
use kvant_onnx::recipe::Recipe;
use kvant_onnx::runtime::RuntimeOptions;
use kvant_onnx::verify::Saturation;
use serde::Serialize;
use serde_json::{Value, json};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// A tenth of the number of calibration samples is used for measuring, but at least this many, if available.
const LEAST: usize = 32;
/// Samples on which tensors inside are compared, where outputs are bad.
const INSIDE: usize = 8;
/// The worst tensors that are named.
const WORST: usize = 3;

/// The graph to measure.
pub struct Subject<'a> {
    pub job: &'a Job,
    pub recipe: &'a Recipe,
    /// The float graph as it was quantized: simplified, its channels scaled.
    pub float: &'a ModelProto,
    pub quantized: &'a ModelProto,
    /// Whether ONNX Runtime is known not to run it on CPUs: it is meant for other hardware.
    pub elsewhere: bool,
    /// The requested SQNR.
    pub least: Option<f64>,
    /// The graph that was quantized.
    pub source: &'a ModelProto,
    pub runtime: &'a RuntimeOptions,
    pub spill: &'a Spill,
}

/// The origin of the samples that a graph was measured on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleOrigin {
    /// Behind those that it was calibrated on.
    HeldOut,
    /// The same: the data have no others.
    Calibration,
    /// It was not calibrated.
    Given,
}

/// The measured quality of a graph.
#[derive(Debug, Serialize)]
pub struct Quality {
    /// Samples that it was measured on.
    pub samples: usize,
    /// Their origin.
    pub samples_from: SampleOrigin,
    /// The engine that ran it.
    pub engine: String,
    /// Each output compared with that of the float graph.
    pub outputs: Vec<TensorReport>,
    /// The share of samples with the same top class.
    pub top1_agreement: Option<f64>,
    /// Of a decoder on text, how well it predicts that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<TextQuality>,
    /// The reason that ONNX Runtime does not run it with its graph optimizations.
    pub optimized_fails: Option<String>,
    /// Whether no other engine was requested.
    #[serde(skip)]
    pub is_useless: bool,
    /// The problem.
    pub warnings: Vec<String>,
    /// Images of the data with the classes of both graphs, if there is a report for people to show them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<ShownImage>,
    /// The most damaged tensors inside, where there are warnings.
    pub worst_tensors: Vec<TensorReport>,
    /// Possible remedies.
    pub suggestions: Vec<Remedy>,
}

/// The outcome of measuring.
#[derive(Debug)]
pub enum Measured {
    /// The result.
    Done(Box<Quality>),
    /// The reason that nothing was measured.
    Not(String),
    /// Why the measurement failed: nobody knows whether the graph computes anything.
    Failed(String),
}

/// Measures a graph. A failed measurement is reported and is not an error, because the graph exists.
///
/// # Errors
/// A cancelled run.
pub fn measure(subject: &Subject<'_>, reporter: &Reporter<'_>) -> Result<Measured, Error> {
    let Some(source) = source(&subject.job.data)? else { return Ok(Measured::Not("there are no data".to_owned())) };
    match quality(subject, &source, reporter) {
        Ok(quality) => Ok(Measured::Done(Box::new(quality))),
        Err(failure) if failure.kind == ErrorKind::Interrupted => Err(failure),
        Err(failure) => Ok(Measured::Failed(failure.message)),
    }
}

fn quality(subject: &Subject<'_>, source: &GraphData, reporter: &Reporter<'_>) -> Result<Quality, Error> {
    let reference = widened(subject.source.clone()).map_err(kvant_onnx::error::QuantizeError::from)?;
    let (report, origin) = match outputs(subject, &reference, source, reporter) {
        // An engine may not have the types of the source: those of the simplified graph it ran already.
        Err(Unmeasured::Evaluation(error)) if error.is_of_reference() => {
            outputs(subject, subject.float, source, reporter)
        }
        other => other,
    }?;
    let text = match source {
        GraphData::Text(files) => noted(on_text(subject, files, reporter), reporter)?,
        GraphData::Samples(_) => None,
    };
    let saturates = Saturation::of(&subject.quantized.graph).is_some();
    let concerns = Concern::of(&report, saturates, subject.elsewhere);
    let is_low = subject.least.is_some_and(|least| report.outputs.iter().any(|output| is_below(output, least)));
    let lost = report.outputs.iter().any(|output| output.much_better_db().is_some());
    let loss = match report.optimized_fails.as_deref().filter(|_| !subject.elsewhere) {
        Some(problem) => Loss::Run(problem),
        None if saturates && lost => Loss::Saturation,
        None => Loss::None,
    };
    let is_useless = matches!(loss, Loss::Run(_));
    let suggested = || remedies(subject.recipe, subject.float, Some(subject.spill), loss);
    let (worst_tensors, suggestions) = match (concerns.is_empty() && !is_low, is_useless) {
        (true, _) => (Vec::new(), Vec::new()),
        (false, true) => (Vec::new(), suggested()),
        (false, false) => (worst(subject, source), suggested()),
    };
    Ok(Quality {
        samples: report.samples,
        samples_from: origin,
        engine: report.engine,
        outputs: report.outputs,
        top1_agreement: report.top1_agreement,
        text,
        is_useless,
        optimized_fails: report.optimized_fails,
        images: report.images,
        warnings: concerns.iter().map(ToString::to_string).collect(),
        worst_tensors,
        suggestions,
    })
}

/// A decoder on sequences that it was not calibrated on, where there are any.
fn on_text(subject: &Subject<'_>, files: &[PathBuf], reporter: &Reporter<'_>) -> Result<TextQuality, Error> {
    let most = Most::of(subject);
    let held_out = if is_calibrated(subject) { most.held_out } else { 0 };
    let (mut sequences, held_out) =
        TextSequences::load(subject.job, files, &subject.source.graph, subject.job.data.num_samples, held_out)?
            .into_parts();
    if !held_out.is_empty() {
        sequences = held_out;
    }
    let progress = reporter.stage(Stage::Evaluation, Unit::Tokens);
    let watch = progress.watch_cancelled();
    distance([subject.quantized, subject.source], &sequences, subject.runtime, watch)
}

/// A measurement on text, or a note of its failure: that of a graph with NaN in its outputs is one, and the outputs were compared.
fn noted(found: Result<TextQuality, Error>, reporter: &Reporter<'_>) -> Result<Option<TextQuality>, Error> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(failure) if failure.kind == ErrorKind::Interrupted => Err(failure),
        Err(failure) => {
            reporter.note(&format!("the perplexity of the result was not measured: {}", failure.message));
            Ok(None)
        }
    }
}

/// Returns whether ranges or codes come from data.
fn is_calibrated(subject: &Subject<'_>) -> bool {
    subject.recipe.needs_data() || subject.recipe.algorithms.need_data()
}

/// The reason that outputs were not compared.
enum Unmeasured {
    Evaluation(EvaluationError),
    Data(Error),
}

impl From<Unmeasured> for Error {
    fn from(error: Unmeasured) -> Error {
        match error {
            Unmeasured::Evaluation(error) => error.into(),
            Unmeasured::Data(failure) => failure,
        }
    }
}

fn outputs(
    subject: &Subject<'_>,
    reference: &ModelProto,
    source: &GraphData,
    reporter: &Reporter<'_>,
) -> Result<(Report, SampleOrigin), Unmeasured> {
    let most = Most::of(subject);
    let (mut samples, origin) = samples(subject, reference, source, most).map_err(Unmeasured::Data)?;
    let all = samples.len() as u64;
    let progress = reporter.stage(Stage::Evaluation, Unit::Samples);
    let mut watch = progress.watch();
    watch(0, all);
    let mut done = |number: usize| {
        watch(number as u64, all);
        match reporter.cancel().is_cancelled() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let is_shown = subject.job.sinks.page.is_some();
    let compared = Compared { distributions: is_shown, ..Compared::default() };
    let report = evaluate(reference, subject.quantized, &mut samples, compared, None, subject.runtime, &mut done);
    let mut report = report.map_err(Unmeasured::Evaluation)?;
    if is_shown {
        report.show(&samples);
    }
    Ok((report, origin))
}

/// How many samples to measure on.
#[derive(Clone, Copy)]
struct Most {
    /// Of those behind the ones that ranges come from.
    held_out: usize,
    /// Of the same ones.
    given: usize,
}

impl Most {
    fn of(subject: &Subject<'_>) -> Most {
        let used = subject.job.data.num_samples;
        Most { held_out: LEAST.max(used / 10), given: used }
    }
}

/// Samples after those used for ranges, if any; otherwise the same ones.
fn samples(
    subject: &Subject<'_>,
    graph: &ModelProto,
    source: &GraphData,
    most: Most,
) -> Result<(Samples, SampleOrigin), Error> {
    let (job, used) = (subject.job, subject.job.data.num_samples);
    let calibrated = is_calibrated(subject);
    let rest = match calibrated && !source.is_made_up() {
        true => source.behind(job, &graph.graph, used, most.held_out)?,
        false => None,
    };
    if let Some(rest) = rest {
        return Ok((rest, SampleOrigin::HeldOut));
    }
    let origin = if calibrated { SampleOrigin::Calibration } else { SampleOrigin::Given };
    Ok((source.first(job, &graph.graph, most.given.min(used))?, origin))
}

/// Notes in a quantized graph which of its tensors are not those of the source, because an algorithm has scaled their channels.
/// Without data made-up ones show it, where the graph takes any; what cannot be found out is left.
pub fn note_channels(quantized: &mut ModelProto, subject: &Channels<'_>) {
    let changes = |algorithm: &Algorithm| algorithm.stage() == AlgorithmStage::Float;
    if !subject.recipe.algorithms.iter().any(changes) {
        return;
    }
    let found = || -> Result<Vec<String>, Error> {
        let reference = widened(subject.source.clone()).map_err(kvant_onnx::error::QuantizeError::from)?;
        let made_up = GraphData::Samples(SampleSource::Random(Distribution::Normal));
        let mut samples = source(&subject.job.data)?.unwrap_or(made_up).first(subject.job, &reference.graph, 1)?;
        Ok(scaled_tensors(&reference, subject.float, &mut samples, subject.runtime)?)
    };
    note_scaled(quantized, &found().unwrap_or_default());
}

/// The input of [`note_channels`].
pub struct Channels<'a> {
    pub job: &'a Job,
    /// The graph that was quantized.
    pub source: &'a ModelProto,
    pub recipe: &'a Recipe,
    pub float: &'a ModelProto,
    pub runtime: &'a RuntimeOptions,
}

/// The most damaged tensors inside, against the float graph whose channels have the same scales: those that are NaN or infinite first,
/// in the order of the graph.
fn worst(subject: &Subject<'_>, source: &GraphData) -> Vec<TensorReport> {
    let most = Most { held_out: INSIDE, given: INSIDE };
    let Ok((mut samples, _)) = samples(subject, subject.float, source, most) else { return Vec::new() };
    // Here they can be compared.
    let mut quantized = subject.quantized.clone();
    note_scaled(&mut quantized, &[]);
    let compared = Compared { inside: true, ..Compared::default() };
    let found = evaluate(subject.float, &quantized, &mut samples, compared, None, subject.runtime, &mut |_| {
        ControlFlow::Continue(())
    });
    let outputs = |name: &str| subject.float.graph.output.iter().any(|value| value.name() == name);
    let tensors = found.map_or_else(|_| Vec::new(), |report| report.tensors);
    let inside = || tensors.iter().filter(|tensor| !outputs(&tensor.name));
    let broken = inside().filter(|tensor| tensor.non_finite > 0);
    let damaged = inside().filter(|tensor| tensor.non_finite == 0 && tensor.sqnr_db.is_finite());
    broken.chain(damaged).take(WORST).cloned().collect()
}

impl Measured {
    /// As data.
    pub fn object(&self) -> Value {
        match self {
            Self::Done(quality) => json!(quality),
            Self::Not(reason) | Self::Failed(reason) => json!({ "not_measured": reason }),
        }
    }

    /// The most damaged tensors inside, by name.
    pub fn damaged(&self) -> Vec<&str> {
        let Self::Done(quality) = self else { return Vec::new() };
        quality.worst_tensors.iter().map(|tensor| tensor.name.as_str()).collect()
    }

    /// Returns whether the outputs are numbers where those of the float model are.
    ///
    /// # Errors
    /// The first output that is not, and the tensors that damage it.
    pub fn require_numbers(&self) -> Result<(), String> {
        let Self::Done(quality) = self else { return Ok(()) };
        let Some(output) = quality.outputs.iter().find(|output| output.non_finite > 0) else { return Ok(()) };
        let inside: Vec<String> = quality.worst_tensors.iter().map(|tensor| format!("`{}`", tensor.name)).collect();
        let worst = if inside.is_empty() { String::new() } else { format!(", damaged most in {}", inside.join(", ")) };
        let name = &output.name;
        Err(format!("output `{name}` has NaN or infinite values where the float model has numbers{worst}"))
    }

    /// Returns whether the worst output reaches an SQNR.
    ///
    /// # Errors
    /// It does not, or this is unknown.
    pub fn require(&self, least: f64) -> Result<(), String> {
        let Self::Done(quality) = self else {
            return Err(format!("‹min-sqnr› {least}: the SQNR of the outputs is not known"));
        };
        if let Some(problem) = quality.optimized_fails.as_ref().filter(|_| quality.is_useless) {
            return Err(format!("‹min-sqnr› {least}: onnxruntime fails to run the result: {problem}"));
        }
        match quality.outputs.iter().find(|output| is_below(output, least)) {
            Some(output) => {
                let better = output.much_better_db().map(|db| format!(" ({db:.2} dB without graph optimizations)"));
                Err(format!(
                    "output `{}` has an SQNR of {:.2} dB{}, and ‹min-sqnr› asks for {least}",
                    output.name,
                    output.sqnr_db,
                    better.unwrap_or_default()
                ))
            }
            None if quality.outputs.is_empty() => Err("no output is of floats: ‹min-sqnr› has no SQNR".to_owned()),
            None => Ok(()),
        }
    }
}

/// Returns whether an output does not reach an SQNR.
fn is_below(output: &TensorReport, least: f64) -> bool {
    output.sqnr_db.is_nan() || output.sqnr_db < least
}
