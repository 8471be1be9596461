//! Quantizes a graph.

use super::accuracy::{self, AccuracyReport};
use super::data::calibration;
use super::fingerprint::fingerprint;
use super::measure::{Channels, Measured, Subject, measure, note_channels};
use super::opening::{self, Opening};
use super::outputs::{GraphOutput, GraphOutputs};
use super::ranges::{SavedRanges, UsedRanges};
use super::staged::{Staged, made_or_left};
use super::verify::accept;
use super::{read, recipe};
use crate::delivery::claim;
use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Resumption, Stage, Unit};
use crate::job::{Job, SourceKind};
use crate::json::versioned;
use crate::paths::{full_path, refuse_existing, refuse_other_file, refuse_stray_data};
use crate::text::{printable, shown};
use kvant_container::onnx::{ModelProto, Spill, external_files};
use kvant_container::unfinished::{Claim, KeptResults, Paths, Room, rejection_report};
use kvant_container::{Remedy, directory_of, write_file};
use kvant_onnx::algorithm::Data;
use kvant_onnx::calibration::{Observed, observe};
use kvant_onnx::cost::DiskCost;
use kvant_onnx::data::Samples;
use kvant_onnx::quantize::{Prepared, Solved, prepare};
use kvant_onnx::recipe::{Layout, Recipe};
use kvant_onnx::report::Report;
use kvant_onnx::runtime::{self, RuntimeChoice, found};
use kvant_onnx::settings::Resolved;
use kvant_onnx::verify::unopenable;
use kvant_quant::finding::Finding;
use rayon::ThreadPool;
use serde_json::{Value, json};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Quantizes a graph. An interrupted run resumes with what it has found of ranges, transforms and layers.
///
/// # Errors
/// Invalid requests, before data are read; then errors of the data, the engine or the system, and a rejected result, which
/// is reported and not written.
pub fn run(job: &Job, reporter: &Reporter<'_>) -> Result<Box<GraphReport>, Error> {
    let begun = Instant::now();
    let (sinks, commit) = (&job.sinks, job.sinks.commit);
    let outputs = GraphOutputs::of(job)?;
    outputs.check(sinks)?;
    reporter.started();
    let claim = claim(&outputs.named, &sinks.settings, commit)?;
    let resolved = recipe::recipe(job)?;
    refuse_unusable_limits(job)?;
    SavedRanges::of(job)?;
    // What is kept counts as that of the files as they were before they were read.
    let plan = match accuracy::is_asked(job) {
        true => fingerprint(job, &resolved) + &accuracy::fingerprint(job),
        false => fingerprint(job, &resolved),
    };
    let source = read(&job.source.model)?;
    claim.begin(&plan)?;
    let kept = KeptResults::new(&claim.paths().blocks(), &plan);
    let run = Run { job, reporter, outputs: &outputs, source: &source, kept, begun };
    let made = match accuracy::is_asked(job) {
        true => accuracy::search(&run, &claim),
        false => run.make(resolved, &claim),
    };
    let made = made.and_then(|(made, staged)| run.with_report(made, staged));
    let ((made, staged), claim) = made_or_left(claim, made, reporter.refuse_lost().is_ok())?;
    match made.rejection {
        None => staged.place_all(claim, &outputs, commit.sync)?,
        Some(_) => staged.place_report(claim, commit.sync)?,
    }
    if made.rejection.is_some() && sinks.report.is_none() {
        let kept = rejection_report(&outputs.named)?;
        write_file(&kept, made.text(reporter)?.as_bytes())
            .map_err(|cause| Error::system(format!("cannot write {}: {cause}", shown(&kept))))?;
    }
    Ok(Box::new(made))
}

/// A run that has claimed its output.
pub(super) struct Run<'a, 'e> {
    pub job: &'a Job,
    pub reporter: &'a Reporter<'e>,
    pub outputs: &'a GraphOutputs,
    /// The graph to quantize.
    pub source: &'a ModelProto,
    /// Results of an interrupted run and of this one.
    pub kept: KeptResults,
    pub begun: Instant,
}

/// The most tensors of a graph whose activations a report shows. It is a prime number: tensors that are evenly spread are not all of the same kind.
const SHOWN_TENSORS: usize = 251;

/// What the graphs of a run are made from.
struct Common<'a> {
    recipe: &'a Recipe,
    /// The float graph: simplified, its channels scaled.
    float: &'a ModelProto,
    spill: &'a Spill,
    pool: &'a ThreadPool,
}

impl Run<'_, '_> {
    /// Does the work, up to files that only lack their names.
    pub fn make(&self, resolved: Resolved, claim: &Claim) -> Result<(GraphReport, Staged), Error> {
        let Run { job, reporter, outputs, .. } = *self;
        let sinks = &job.sinks;
        let spill = Spill::new(directory_of(&outputs.named))?.cancelled_by(reporter.cancel().flag().clone());
        let pool = job.limits.pool()?;
        let source = self.source.clone();
        let prepared = pool.install(|| prepare(source, resolved.recipe, &resolved.passes, Some(&spill)))?;
        for output in &outputs.all {
            prepared.check_layout(output.layout(&prepared.recipe))?;
        }
        refuse_unrunnable(job, &prepared)?;
        let saved = SavedRanges::of(job)?;
        saved.as_ref().map_or(Ok(()), |saved| saved.check(&prepared))?;
        reporter.notes(prepared.notices());
        let mut samples = samples(job, &prepared, reporter)?;
        check_room(job, self.source, outputs, &prepared, samples.as_ref().map_or(0, Samples::len))?;
        pool.install(|| prepared.check_weights())?;
        let kept = Observed::kept(&self.kept);
        match (&kept, self.kept.is_empty()) {
            (Some(_), _) => reporter.resumed(Resumption::Statistics),
            (None, false) => reporter.resumed(Resumption::Transforms),
            (None, true) => {}
        }
        let mut quiet = |_, _| {};
        let mut seen = self.data(samples.as_mut(), &mut quiet);
        let prepared = pool.install(|| prepared.transformed(seen.as_mut(), Some(&spill)))?;
        let (float, recipe) = (prepared.model.clone(), prepared.recipe.clone());
        let ranges = UsedRanges::of(&prepared);
        let (observed, engine) = match kept {
            Some((observed, engine)) => {
                if job.sinks.page.is_some() && observed.distributions.is_empty() {
                    reporter.note(crate::calibration::ACTIVATIONS_NOT_KEPT);
                }
                (observed, Some(engine))
            }
            None => self.observe(&prepared, seen.as_mut())?,
        };
        let solved = {
            let progress = reporter.stage(Stage::Algorithms, Unit::Layers);
            let (mut watch, mut is_first) = (progress.watch_resumed(), true);
            let mut watch = |done: u64, total: u64| {
                if std::mem::take(&mut is_first) && done > 0 {
                    reporter.resumed(Resumption::Layers { done, total });
                }
                watch("", done, total);
            };
            let mut seen = self.data(samples.as_mut(), &mut watch);
            pool.install(|| prepared.solve(&observed, seen.as_mut(), Some(&spill)))?
        };
        let common = Common { recipe: &recipe, float: &float, spill: &spill, pool: &pool };
        let mut staged = Staged::begin(claim, outputs.all.iter().map(|output| output.path.as_path()))?;
        let graphs = outputs.all.iter().map(|output| self.graph(&solved, output, &common, &mut staged));
        let graphs = graphs.collect::<Result<Vec<_>, Error>>()?;
        if let Some(saved) = &saved {
            refuse_existing(&saved.path, sinks.commit.overwrite)?;
            staged.add_ranges(&saved.format.write(&solved.range_table())?, &saved.path)?;
        }
        let rejection = graphs.iter().find_map(|graph| self.rejection(graph));
        let made = GraphReport {
            written: rejection.is_none(),
            source_bytes: model_size(&job.source.model),
            graphs,
            engine,
            seconds: self.begun.elapsed().as_secs_f64(),
            rejection,
            accuracy: None,
            ranges,
            saved,
        };
        reporter.refuse_lost()?;
        if made.rejection.is_none() {
            // Hours may have passed since the first look.
            outputs.all.iter().try_for_each(|output| check_output(&output.path, sinks.commit.overwrite))?;
        }
        Ok((made, staged))
    }

    /// Adds the report, if there is to be one.
    fn with_report(&self, made: GraphReport, mut staged: Staged) -> Result<(GraphReport, Staged), Error> {
        if let Some(path) = &self.job.sinks.report {
            refuse_existing(path, self.job.sinks.commit.overwrite)?;
            staged.add_report(&made.text(self.reporter)?, path)?;
        }
        Ok((made, staged))
    }

    /// Writes one of the graphs, without its name, opens it and measures it.
    fn graph(
        &self,
        solved: &Solved,
        output: &GraphOutput,
        common: &Common<'_>,
        staged: &mut Staged,
    ) -> Result<QuantizedGraph, Error> {
        let Run { job, reporter, source, .. } = *self;
        let Common { recipe, float, spill, pool } = *common;
        let (no_verify, least) = (job.sinks.commit.no_verify, job.limits.quality.min_sqnr);
        let layout = output.layout(recipe);
        let recipe = &Recipe { layout, ..recipe.clone() };
        let (mut quantized, report) = pool.install(|| solved.write(layout, Some(spill)))?;
        let findings = if no_verify { Vec::new() } else { accept(&quantized, &output.path)? };
        let runtime = job.limits.runtime();
        let channels = Channels { job, source, recipe, float, runtime: &runtime };
        pool.install(|| note_channels(&mut quantized, &channels));
        let made = staged.write(quantized, &output.path, job.sinks.external_data, reporter.cancel())?;
        let opening = open(job, &made, &findings, reporter)?;
        let quality = {
            let quantized = read(&made)?;
            let elsewhere = !kvant_onnx::verify::runs(&kvant_onnx::verify::verify(&quantized));
            let (quantized, runtime) = (&quantized, &runtime);
            let subject = Subject { job, source, recipe, float, quantized, elsewhere, least, runtime, spill };
            match no_verify && least.is_none() {
                true => Measured::Not("‹no-verify› is given".to_owned()),
                false => pool.install(|| measure(&subject, reporter))?,
            }
        };
        Ok(QuantizedGraph {
            output: full_path(&output.path),
            format: format_name(layout),
            bytes: model_size(&made),
            report,
            opening,
            quality,
        })
    }

    /// Why a graph does not get its name: its outputs are no numbers, or worse than is asked for.
    fn rejection(&self, graph: &QuantizedGraph) -> Option<Error> {
        let written = |problem: String| {
            let format = graph.format.filter(|_| self.outputs.has_directory());
            let format = format.map(|format| format!("{format}: ")).unwrap_or_default();
            let output = shown(&self.outputs.named);
            format!("{format}{problem}: {output} is not written{}", self.about_report())
        };
        let unfit = |problem: String| Error::new(ErrorKind::Unfit, written(problem));
        if let (false, Err(problem)) = (self.job.sinks.commit.no_verify, graph.quality.require_numbers()) {
            let ways = graph.keep().into_iter().chain([Remedy::SkipVerification("write it anyway")]).collect();
            return Some(unfit(problem).with_remedies(ways));
        }
        let problem = graph.quality.require(self.job.limits.quality.min_sqnr?).err()?;
        Some(unfit(problem).with_remedies(self.ways_to_reach(&graph.quality)))
    }

    /// The ways to a result that reaches the least SQNR.
    fn ways_to_reach(&self, measured: &Measured) -> Vec<Remedy> {
        match measured {
            Measured::Done(quality) if quality.outputs.is_empty() => vec![Remedy::leave_out("min-sqnr")],
            Measured::Done(quality) => {
                let lower = Remedy::setting("min-sqnr", "try a lower ‹min-sqnr›");
                let above = (!quality.suggestions.is_empty()).then(|| Remedy::text("try one of the options above"));
                above.into_iter().chain([lower]).collect()
            }
            Measured::Not(_) | Measured::Failed(_) => {
                let embedded = found(&self.job.limits.runtime()).is_ok_and(|(engine, _)| engine == RuntimeChoice::Rten);
                let other = embedded.then(|| Remedy::setting_to("runtime", "ort", "measure it with ‹runtime› ort"));
                let effect = "to write it without that";
                other.into_iter().chain([Remedy::LeaveOut { setting: "min-sqnr", effect }]).collect()
            }
        }
    }

    /// Where the report of a rejected graph is, and how the next run gets past it, as the rest of a sentence.
    pub fn about_report(&self) -> String {
        match (&self.job.sinks.report, self.job.sinks.commit.overwrite) {
            (Some(report), false) => {
                format!("; its report {} is, and another run replaces it with ‹overwrite›", shown(report))
            }
            (Some(_), true) => String::new(),
            (None, _) => rejection_report(&self.outputs.named)
                .map_or_else(|_| String::new(), |report| format!("; the report is {}", shown(&report))),
        }
    }

    /// The inputs of algorithms, if there are data.
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
        if self.job.sinks.page.is_some() {
            observation = observation.with_distributions(SHOWN_TENSORS);
        }
        let Some(data) = data.filter(|_| !observation.tensors().is_empty()) else {
            return Ok((observation.observed(), None));
        };
        let progress = self.reporter.stage(Stage::Calibration, Unit::Samples);
        let mut watch = progress.watch();
        let (model, runtime) = (&prepared.model, &data.runtime);
        let engine = observe(model, &mut observation, data.samples, runtime, &mut watch, data.cancelled)?;
        let observed = self.job.limits.pool()?.install(|| observation.observed());
        self.reporter.refuse_lost()?;
        let failed =
            |cause: io::Error| Error::io(format!("cannot store ranges next to {}", shown(&self.outputs.named)), &cause);
        observed.keep(&engine, &self.kept).map_err(failed)?;
        Ok((observed, Some(engine)))
    }
}

/// Refuses a run that the disks have no room for: the graphs and the report, new weights and kept results beside them, and activations
/// of so many samples in the directory of temporary files.
///
/// # Errors
/// Names what needs the room.
pub(super) fn check_room(
    job: &Job,
    source: &ModelProto,
    outputs: &GraphOutputs,
    prepared: &Prepared,
    samples: usize,
) -> Result<(), Error> {
    let runtime = job.limits.runtime();
    let cost = DiskCost::of(prepared, samples, runtime.budget, outputs.all.len());
    let constants = kvant_onnx::count::constants(&source.graph, kvant_onnx::count::size);
    let rest = model_size(&job.source.model).saturating_sub(constants);
    let mut room = Room::default();
    for output in &outputs.all {
        room.output(&Paths::of(&output.path)?, cost.output.saturating_add(rest));
    }
    if let Some(report) = &job.sinks.report {
        room.report(report);
    }
    room.beside(&Paths::of(&outputs.named)?, cost.beside);
    room.temporary(&runtime.scratch.unwrap_or_else(std::env::temp_dir), cost.activations);
    Ok(room.check()?)
}

/// Refuses limits that a run could not keep: a least SQNR without samples, and a library that is not one of ONNX Runtime.
///
/// # Errors
/// Names the setting, or the library.
pub(super) fn refuse_unusable_limits(job: &Job) -> Result<(), Error> {
    check_measurable(job)?;
    if job.limits.engine.library.is_some() {
        found(&job.limits.runtime())?;
    }
    Ok(())
}

/// Refuses a graph with an operator that there is not or versions that no runtime takes, unless nothing is verified, and one that has to be run over data and that the engine
/// does not run.
///
/// # Errors
/// Names the operators.
pub(super) fn refuse_unrunnable(job: &Job, prepared: &Prepared) -> Result<(), Error> {
    let found = unopenable(&prepared.model).filter(|_| !job.sinks.commit.no_verify);
    if let Some(Finding { place, reason, hint, .. }) = found {
        let message = format!("{}: {place}: {reason}", shown(&job.source.model));
        let ways = vec![Remedy::text(hint.unwrap_or_default()), Remedy::SkipVerification("write the result anyway")];
        return Err(Error::new(ErrorKind::Invalid, message).with_remedies(ways));
    }
    if prepared.needs_data() {
        runtime::refuse_unrunnable(&prepared.model, &prepared.observation().tensors(), &job.limits.runtime())?;
    }
    Ok(())
}

/// Refuses an SQNR limit that could not be measured.
fn check_measurable(job: &Job) -> Result<(), Error> {
    if job.limits.quality.min_sqnr.is_none() || !job.data.files.is_empty() {
        return Ok(());
    }
    let failure = Error::new(ErrorKind::Usage, "‹min-sqnr› needs samples to measure the result on");
    Err(failure.with_remedies(vec![Remedy::setting("data", "give some with ‹data›")]))
}

/// Opens the graph in ONNX Runtime, but not with `--runtime rten`. Warns of what keeps it from being opened and that the recipe does
/// not say.
///
/// # Errors
/// ONNX Runtime refuses it, and no finding says why.
fn open(job: &Job, made: &Path, findings: &[Finding], reporter: &Reporter<'_>) -> Result<Opening, Error> {
    let engine = &job.limits.engine;
    if job.sinks.commit.no_verify {
        return Ok(Opening::Unknown);
    }
    let opening = match engine.choice {
        RuntimeChoice::Rten => Opening::Unknown,
        _ => opening::accept(made, engine, !kvant_onnx::verify::runs(findings), reporter.cancel())?,
    };
    if !matches!(opening, Opening::Opens(_)) {
        for Finding { place, reason, .. } in kvant_onnx::verify::of_source(findings) {
            reporter.warning(&format!("ONNX Runtime does not open the result: {}: {reason}", printable(place)));
        }
    }
    Ok(opening)
}

pub(super) fn no_output() -> Error {
    Error::new(ErrorKind::Usage, "no output file is given")
        .with_remedies(vec![Remedy::setting("output", "give one with ‹output›, e.g. ‹output› model.int8.onnx")])
}

/// Refuses an output that exists, or that cannot be a file.
pub fn check_output(output: &Path, overwrite: bool) -> Result<(), Error> {
    let named = shown(output);
    let usage = |message: String, hint: &str| Error::new(ErrorKind::Usage, message).with_hint(Some(hint.to_owned()));
    if SourceKind::of(output) != SourceKind::Graph {
        return Err(usage(format!("{named} is not the name of an ONNX graph"), "end it with .onnx"));
    }
    if output.is_dir() {
        return Err(usage(format!("{named} is a directory"), "name a file in it"));
    }
    if output.exists() && !output.is_file() {
        return Err(usage(format!("{named} is not a regular file"), "choose another name with ‹output›"));
    }
    refuse_existing(output, overwrite)?;
    refuse_other_file(output)?;
    refuse_stray_data(output)
}

/// Opens the data; `None` where nothing depends on them.
fn samples(job: &Job, prepared: &Prepared, reporter: &Reporter<'_>) -> Result<Option<Samples>, Error> {
    if job.data.files.is_empty() {
        prepared.refuse_missing_ranges()?;
    }
    let is_used = prepared.has_use_for_data() && !job.data.files.is_empty();
    if !prepared.needs_data() && !is_used {
        if !job.data.files.is_empty() {
            let needs = if job.recipe.graph.ranges.is_some() { "with these ranges, it" } else { "this recipe" };
            reporter.note(&format!("{needs} does not need calibration data: the result is measured on them"));
        }
        return Ok(None);
    }
    let (samples, _) = calibration(job, &prepared.model.graph, reporter)?;
    Ok(Some(samples))
}

/// The result of quantizing a graph.
pub struct GraphReport {
    /// The graphs, in the order in which their formats were asked for. There is at least one.
    pub graphs: Vec<QuantizedGraph>,
    /// Whether they are written: none of them is where one was rejected.
    pub written: bool,
    /// Bytes of the source's files.
    pub source_bytes: u64,
    /// The engine of the float model; `None` if no range depends on data.
    pub engine: Option<String>,
    /// The duration of the run.
    pub seconds: f64,
    /// The reason that the result was rejected.
    pub rejection: Option<Error>,
    /// The recipes that were tried, where accuracy decides which is taken.
    pub accuracy: Option<AccuracyReport>,
    /// The file of ranges that took the place of data.
    pub ranges: Option<UsedRanges>,
    /// The file that the ranges are written to.
    pub saved: Option<SavedRanges>,
}

/// One of the graphs that a run made.
pub struct QuantizedGraph {
    /// Its path.
    pub output: PathBuf,
    /// Its format, if it is of Q/DQ pairs or integer operators.
    pub format: Option<&'static str>,
    /// Bytes of its files.
    pub bytes: u64,
    /// Results for tensors.
    pub report: Report,
    /// Whether ONNX Runtime opens it.
    pub opening: Opening,
    /// How good it is.
    pub quality: Measured,
}

impl QuantizedGraph {
    /// How to keep the most damaged tensors in float, as far as they have codes.
    fn keep(&self) -> Option<Remedy> {
        let is_coded = |name: &&str| self.report.tensors.iter().any(|t| t.role == "activation" && t.name == **name);
        let damaged = self.quality.damaged().into_iter().filter(is_coded);
        let kept: Vec<String> = damaged.map(|name| format!("‹override› '{name}=keep'")).collect();
        let keep = || format!("keep the most damaged tensors in float with {}", kept.join(" "));
        (!kept.is_empty()).then(|| Remedy::setting("override", keep()))
    }
}

/// The name of a format, as `‹graph-format›` has it.
fn format_name(layout: Layout) -> Option<&'static str> {
    match layout {
        Layout::Qdq => Some("qdq"),
        Layout::QOperator => Some("qoperator"),
        _ => None,
    }
}

/// Bytes of a model: its file and its external data.
pub(crate) fn model_size(path: &Path) -> u64 {
    let external = external_files(path).unwrap_or_default();
    let files = std::iter::once(path).chain(external.iter().map(PathBuf::as_path));
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

impl GraphReport {
    /// The SQNR of the worst output of all graphs in dB, if it was measured.
    pub(super) fn least_sqnr(&self) -> Option<f64> {
        let measured = self.graphs.iter().filter_map(|graph| match &graph.quality {
            Measured::Done(quality) => Some(quality),
            Measured::Not(_) | Measured::Failed(_) => None,
        });
        measured.flat_map(|quality| &quality.outputs).map(|output| output.sqnr_db).reduce(f64::min)
    }

    pub(crate) fn to_json(&self) -> Value {
        let path = |graph: &QuantizedGraph| self.written.then(|| graph.output.to_string_lossy().into_owned());
        let one = |graph: &QuantizedGraph| {
            json!({
                "output": path(graph),
                "graph_format": graph.format,
                "output_bytes": graph.bytes,
                "onnxruntime": graph.opening.object(),
                "quality": graph.quality.object(),
            })
        };
        let first = self.graphs.first();
        let mut object = json!({
            "output": first.and_then(path),
            "outputs": self.graphs.iter().map(one).collect::<Vec<_>>(),
            "format": "onnx",
            "source_bytes": self.source_bytes,
            "output_bytes": first.map(|graph| graph.bytes),
            "seconds": self.seconds,
            "engine": self.engine,
            "report": first.map(|graph| &graph.report),
            "onnxruntime": first.map(|graph| graph.opening.object()),
            "quality": first.map(|graph| graph.quality.object()),
        });
        if let Some(accuracy) = &self.accuracy {
            object["accuracy"] = json!(accuracy);
        }
        if let Some(ranges) = &self.ranges {
            object["ranges"] = json!(ranges);
        }
        if let Some(saved) = self.saved.as_ref().filter(|_| self.written) {
            object["saved_ranges"] =
                json!({"path": full_path(&saved.path).to_string_lossy(), "format": saved.format.name});
        }
        object
    }

    /// The object that `--json` prints, as the text of a file.
    fn text(&self, reporter: &Reporter<'_>) -> Result<String, Error> {
        let text = serde_json::to_string_pretty(&versioned("quantize", self.to_json()));
        Ok(reporter.spelled(&text.map_err(|e| Error::internal(e.to_string()))?) + "\n")
    }
}
