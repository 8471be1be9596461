//! Quantizes a graph.

use super::data::calibration;
use super::fingerprint::fingerprint;
use super::measure::{Channels, Measured, Subject, measure, note_channels};
use super::opening::{self, Opening};
use super::staged::{Staged, made_or_left};
use super::verify::accept;
use super::{read, recipe};
use crate::cancel::CancelToken;
use crate::delivery::claim;
use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Resumption, Stage, Unit};
use crate::job::{Job, SourceKind};
use crate::json::versioned;
use crate::paths::{full_path, refuse_existing, refuse_stray_data};
use crate::text::printable;
use kvant_container::onnx::{Spill, external_files};
use kvant_container::unfinished::{Claim, KeptResults};
use kvant_container::{Remedy, directory_of};
use kvant_onnx::algorithm::Data;
use kvant_onnx::calibration::{Observed, observe};
use kvant_onnx::data::Samples;
use kvant_onnx::quantize::{Prepared, prepare};
use kvant_onnx::report::Report;
use kvant_onnx::runtime::RuntimeChoice;
use kvant_onnx::settings::Resolved;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Quantizes a graph. An interrupted run resumes with what it has found of ranges, transforms and layers.
///
/// # Errors
/// Whatever can be refused, before data are read; then what the data, the engine or the system say, and a result that is rejected
/// is reported and not written.
pub fn run(job: &Job, reporter: &Reporter<'_>) -> Result<Box<GraphReport>, Error> {
    let begun = Instant::now();
    let (sinks, commit) = (&job.sinks, job.sinks.commit);
    let output = sinks.output.as_deref().ok_or_else(no_output)?;
    check_output(output, commit.overwrite)?;
    reporter.started();
    let claim = claim(output, &sinks.settings, commit)?;
    let resolved = recipe::recipe(job)?;
    let plan = fingerprint(job, &resolved);
    claim.begin(&plan)?;
    let kept = KeptResults::new(&claim.paths().blocks(), &plan);
    let made = Run { job, reporter, output, kept, begun }.make(resolved, &claim);
    let ((made, staged), claim) = made_or_left(claim, made, reporter)?;
    match made.rejection {
        None => staged.place(claim, commit.sync)?,
        Some(_) => staged.place_report(claim, commit.sync)?,
    }
    Ok(Box::new(made))
}

/// A run that has claimed its output.
struct Run<'a, 'e> {
    job: &'a Job,
    reporter: &'a Reporter<'e>,
    output: &'a Path,
    /// What an interrupted run has found, and this one finds.
    kept: KeptResults,
    begun: Instant,
}

impl Run<'_, '_> {
    /// Does the work, up to files that only lack their names.
    fn make(&self, resolved: Resolved, claim: &Claim) -> Result<(GraphReport, Staged), Error> {
        let Run { job, reporter, output, .. } = *self;
        let (sinks, commit) = (&job.sinks, job.sinks.commit);
        let cancelled = reporter.cancel().flag();
        let spill = Spill::new(directory_of(output))?.cancelled_by(cancelled.clone());
        let least = job.limits.quality.min_sqnr;
        check_measurable(job)?;
        let pool = job.limits.pool()?;
        let model = read(&job.source.model)?;
        let mut prepared = pool.install(|| prepare(model, resolved.recipe, &resolved.passes, Some(&spill)))?;
        reporter.notes(prepared.notices());
        let mut samples = samples(job, &prepared, reporter)?;
        pool.install(|| prepared.check_weights())?;
        let kept = Observed::kept(&self.kept);
        match (&kept, self.kept.is_empty()) {
            (Some(_), _) => reporter.resumed(Resumption::Statistics),
            (None, false) => reporter.resumed(Resumption::Transforms),
            (None, true) => {}
        }
        let mut quiet = |_, _| {};
        let mut seen = self.data(samples.as_mut(), &mut quiet);
        pool.install(|| prepared.transform(seen.as_mut(), Some(&spill)))?;
        let (float, recipe) = (prepared.model.clone(), prepared.recipe.clone());
        let (observed, engine) = match kept {
            Some((observed, engine)) => (observed, Some(engine)),
            None => self.observe(&prepared, seen.as_mut())?,
        };
        let (mut quantized, report) = {
            let progress = reporter.stage(Stage::Algorithms, Unit::Layers);
            let (mut watch, mut is_first) = (progress.watch_resumed(), true);
            let mut watch = |done: u64, total: u64| {
                if std::mem::take(&mut is_first) && done > 0 {
                    reporter.resumed(Resumption::Layers { done, total });
                }
                watch("", done, total);
            };
            let mut seen = self.data(samples.as_mut(), &mut watch);
            pool.install(|| prepared.finish_with(&observed, seen.as_mut(), Some(&spill)))?
        };
        let runs = commit.no_verify || accept(&quantized, output)?;
        let runtime = job.limits.runtime();
        let channels = Channels { job, recipe: &recipe, float: &float, runtime: &runtime };
        pool.install(|| note_channels(&mut quantized, &channels));
        let mut staged = Staged::write(quantized, claim, sinks.external_data, reporter.cancel())?;
        let opening = open(job, &staged, runs, reporter.cancel())?;
        let quality = {
            let quantized = read(staged.path())?;
            let subject = Subject {
                job,
                recipe: &recipe,
                float: &float,
                quantized: &quantized,
                elsewhere: !kvant_onnx::verify::runs(&kvant_onnx::verify::verify(&quantized)),
                least,
                runtime: &runtime,
                spill: &spill,
            };
            match commit.no_verify && least.is_none() {
                true => Measured::Not("‹no-verify› is given".to_owned()),
                false => pool.install(|| measure(&subject, reporter))?,
            }
        };
        let rejection = least.and_then(|least| quality.require(least).err()).map(|problem| {
            let message = format!("{problem}: {} is not written", printable(&output.to_string_lossy()));
            let hint = "try one of the options above, or a lower ‹min-sqnr›";
            Error::new(ErrorKind::Unfit, message).with_hint(Some(hint.to_owned()))
        });
        let made = GraphReport {
            output: rejection.is_none().then(|| full_path(output)),
            source_bytes: model_size(&job.source.model),
            output_bytes: model_size(staged.path()),
            engine,
            report,
            opening,
            quality,
            seconds: self.begun.elapsed().as_secs_f64(),
            rejection,
        };
        reporter.refuse_lost()?;
        if made.rejection.is_none() {
            // Hours may have passed since the first look.
            check_output(output, commit.overwrite)?;
        }
        if let Some(path) = &sinks.report {
            refuse_existing(path, commit.overwrite)?;
            staged.add_report(&made.text(reporter)?, path)?;
        }
        Ok((made, staged))
    }

    /// What algorithms see, where there are data.
    fn data<'a>(
        &'a self,
        samples: Option<&'a mut Samples>,
        progress: &'a mut (dyn FnMut(u64, u64) + Send),
    ) -> Option<Data<'a>> {
        let (runtime, cancelled) = (self.job.limits.runtime(), &**self.reporter.cancel().flag());
        samples.map(|samples| Data { samples, runtime, cancelled, progress, kept: Some(&self.kept) })
    }

    /// Runs the float model over the data and keeps what was observed. The engine is none where no range depends on data.
    fn observe(&self, prepared: &Prepared, data: Option<&mut Data<'_>>) -> Result<(Observed, Option<String>), Error> {
        let mut observation = prepared.observation();
        let Some(data) = data.filter(|_| !observation.tensors().is_empty()) else {
            return Ok((observation.observed(), None));
        };
        let progress = self.reporter.stage(Stage::Calibration, Unit::Samples);
        let mut watch = progress.watch();
        let (model, runtime) = (&prepared.model, &data.runtime);
        let engine = observe(model, &mut observation, data.samples, runtime, &mut watch, data.cancelled)?;
        let observed = self.job.limits.pool()?.install(|| observation.observed());
        self.reporter.refuse_lost()?;
        let failed = |cause| Error::system(format!("cannot keep ranges beside {}: {cause}", self.output.display()));
        observed.keep(&engine, &self.kept).map_err(failed)?;
        Ok((observed, Some(engine)))
    }
}

/// Refuses to promise an SQNR of which nothing would be known.
fn check_measurable(job: &Job) -> Result<(), Error> {
    if job.limits.quality.min_sqnr.is_none() || !job.data.files.is_empty() {
        return Ok(());
    }
    let failure = Error::new(ErrorKind::Usage, "‹min-sqnr› needs samples to measure the result on");
    Err(failure.with_remedies(vec![Remedy::setting("data", "give some with ‹data›")]))
}

/// Opens the graph in ONNX Runtime, where that should run it: not with `--runtime rten`, nor where it is known that it does not.
///
/// # Errors
/// ONNX Runtime refuses it.
fn open(job: &Job, staged: &Staged, runs: bool, cancel: &CancelToken) -> Result<Opening, Error> {
    let engine = &job.limits.engine;
    if job.sinks.commit.no_verify || !runs || engine.choice == RuntimeChoice::Rten {
        return Ok(Opening::Unknown);
    }
    opening::accept(staged.path(), engine, cancel)
}

pub(super) fn no_output() -> Error {
    Error::new(ErrorKind::Usage, "no output file is given")
        .with_remedies(vec![Remedy::setting("output", "give one with ‹output›, e.g. ‹output› model.int8.onnx")])
}

/// Refuses an output that exists, or that is no file to be.
pub fn check_output(output: &Path, overwrite: bool) -> Result<(), Error> {
    let shown = printable(&output.to_string_lossy());
    let usage = |message: String, hint: &str| Error::new(ErrorKind::Usage, message).with_hint(Some(hint.to_owned()));
    if SourceKind::of(output) != SourceKind::Graph {
        return Err(usage(format!("{shown} is no name of an ONNX graph"), "end it with .onnx"));
    }
    if output.is_dir() {
        return Err(usage(format!("{shown} is a directory"), "name a file in it"));
    }
    if output.exists() && !output.is_file() {
        return Err(usage(format!("{shown} is no regular file"), "choose another name with ‹output›"));
    }
    refuse_existing(output, overwrite)?;
    refuse_stray_data(output)
}

/// Opens the data; `None` where nothing depends on them.
fn samples(job: &Job, prepared: &Prepared, reporter: &Reporter<'_>) -> Result<Option<Samples>, Error> {
    if !prepared.needs_data() {
        if !job.data.files.is_empty() {
            reporter.note("this recipe does not need calibration data: the result is measured on them");
        }
        return Ok(None);
    }
    let (samples, _) = calibration(job, &prepared.model.graph, reporter)?;
    Ok(Some(samples))
}

/// What quantizing a graph made.
pub struct GraphReport {
    /// The graph; `None` where the result was rejected.
    pub output: Option<PathBuf>,
    /// Bytes of the source's files.
    pub source_bytes: u64,
    /// Bytes of the result's files.
    pub output_bytes: u64,
    /// What the float model was run with; `None` where no range depends on data.
    pub engine: Option<String>,
    /// What became of tensors.
    pub report: Report,
    /// Whether ONNX Runtime opens the result.
    pub opening: Opening,
    /// How good the result is.
    pub quality: Measured,
    /// How long the run took.
    pub seconds: f64,
    /// Why the result was rejected and is not written.
    pub rejection: Option<Error>,
}

/// Bytes of a model: its file, and those that its tensors lie in.
pub(super) fn model_size(path: &Path) -> u64 {
    let external = external_files(path).unwrap_or_default();
    let files = std::iter::once(path).chain(external.iter().map(PathBuf::as_path));
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

impl GraphReport {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "output": self.output.as_ref().map(|path| path.to_string_lossy().into_owned()),
            "format": "onnx",
            "source_bytes": self.source_bytes,
            "output_bytes": self.output_bytes,
            "seconds": self.seconds,
            "engine": self.engine,
            "report": self.report,
            "onnxruntime": self.opening.object(),
            "quality": self.quality.object(),
        })
    }

    /// The object that `--json` prints, as the text of a file.
    fn text(&self, reporter: &Reporter<'_>) -> Result<String, Error> {
        let text = serde_json::to_string_pretty(&versioned("quantize", self.to_json()));
        Ok(reporter.spelled(&text.map_err(|e| Error::internal(e.to_string()))?) + "\n")
    }
}
