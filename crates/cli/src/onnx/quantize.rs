//! `kvant quantize model.onnx`.

use super::data::calibration;
use super::measure::{Channels, Measured, Subject, measure, note_channels};
use super::opening::{self, Opening};
use super::staged::Staged;
use super::verify::accept;
use super::{is_graph, read, recipe, runtime};
use crate::args::{ExternalWhen, QuantizeArgs};
use crate::delivery::claim;
use crate::escape::printable;
use crate::failure::{Failure, Kind};
use crate::json_lines::versioned;
use crate::outputs::{full_path, refuse_existing, refuse_stray_data};
use crate::printer::Printer;
use crate::progress::{Progress, Unit};
use crate::{counts, interrupt, model, size};
use kvant_container::onnx::{ExternalData, Spill, external_files, sync_written};
use kvant_container::{directory_of, write_file};
use kvant_onnx::algorithm::{Data, LayerGain};
use kvant_onnx::calibration::{Observation, observe};
use kvant_onnx::data::Samples;
use kvant_onnx::quantize::{Prepared, prepare};
use kvant_onnx::report::{Report, TensorReport};
use kvant_onnx::runtime::{RuntimeChoice, RuntimeOptions};
use kvant_onnx::settings::Resolved;
use kvant_onnx::verify::SATURATION_HINT;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Quantizes a graph.
///
/// # Errors
/// Whatever can be refused, before data are read; then what the data, the engine or the system say.
pub fn run(args: &QuantizeArgs, printer: &Printer) -> Result<(), Failure> {
    if args.dry_run {
        return super::plan::show(&args.recipe, &args.run, printer);
    }
    let begun = Instant::now();
    let output = args.output.as_deref().ok_or_else(no_output)?;
    check_output(output, args.finish.overwrite)?;
    let cancelled = interrupt::flag();
    // Nothing is gone on with here, but two runs at once would replace each other's graph.
    let _claim = claim(output, &args.recipe.typed, args.finish)?;
    let directory = directory_of(output);
    let spill = Spill::new(directory)?.cancelled_by(cancelled.clone());
    let least = args.recipe.onnx.min_sqnr;
    check_measurable(args)?;
    let mut prepared = plan(args, &spill)?;
    prepared.notices().iter().for_each(|notice| printer.note(notice));
    let mut samples = samples(args, &prepared, printer)?;
    let pool = model::pool(&args.run)?;
    pool.install(|| prepared.check_weights())?;
    let runtime = runtime(&args.recipe.onnx.engine, &args.run);
    let mut quiet = |_, _| {};
    let mut seen = data(samples.as_mut(), &runtime, &cancelled, &mut quiet);
    pool.install(|| prepared.transform(seen.as_mut(), Some(&spill)))?;
    let (float, recipe) = (prepared.model.clone(), prepared.recipe.clone());
    let mut observation = prepared.observation();
    let engine = calibrate(&prepared, &mut observation, seen.as_mut(), printer)?;
    let (mut quantized, report) = {
        let progress = Progress::new(printer, Unit::Layers);
        let mut watch = progress.watch();
        let mut seen = data(samples.as_mut(), &runtime, &cancelled, &mut watch);
        pool.install(|| prepared.finish(&observation, seen.as_mut(), Some(&spill)))?
    };
    let runs = args.finish.no_verify || accept(&quantized, output)?;
    let external = match args.recipe.onnx.external_data {
        ExternalWhen::Auto => ExternalData::Auto,
        ExternalWhen::Always => ExternalData::Always,
        ExternalWhen::Never => ExternalData::Never,
    };
    let channels = Channels { args: &args.recipe, recipe: &recipe, float: &float, runtime: &runtime };
    pool.install(|| note_channels(&mut quantized, &channels));
    let staged = Staged::write(quantized, output, external, &cancelled)?;
    let opening = open(args, &staged, runs, &cancelled)?;
    let quality = {
        let quantized = read(staged.path())?;
        let subject = Subject {
            args: &args.recipe,
            recipe: &recipe,
            float: &float,
            quantized: &quantized,
            elsewhere: !kvant_onnx::verify::runs(&kvant_onnx::verify::verify(&quantized)),
            least,
            runtime: &runtime,
            spill: &spill,
            cancelled: &cancelled,
        };
        match args.finish.no_verify && least.is_none() {
            true => Measured::Not("--no-verify is given".to_owned()),
            false => pool.install(|| measure(&subject, printer))?,
        }
    };
    let refused = least.and_then(|least| quality.require(least).err());
    let bytes = model_size(staged.path());
    let seconds = begun.elapsed().as_secs_f64();
    let is_written = refused.is_none();
    let made =
        Made { source: &args.recipe.model, output, is_written, bytes, engine, report, opening, quality, seconds };
    if is_written {
        // Hours may have passed since the first look.
        check_output(output, args.finish.overwrite)?;
    }
    // Before the graph has its name: a report that cannot be written leaves nothing.
    if let Some(path) = &args.recipe.onnx.report {
        refuse_existing(path, args.finish.overwrite)?;
        made.write(path)?;
    }
    if is_written {
        staged.persist(output)?;
        if args.finish.sync {
            sync_written(output)?;
        }
    }
    made.tell(printer)?;
    refused.map_or(Ok(()), |problem| {
        let failure =
            Failure::new(Kind::Unfit, format!("{problem}: {} is not written", printable(&output.to_string_lossy())));
        Err(failure.with_hint(Some("try one of the options above, or a lower --min-sqnr".to_owned())))
    })
}

/// Refuses to promise an SQNR of which nothing would be known.
fn check_measurable(args: &QuantizeArgs) -> Result<(), Failure> {
    if args.recipe.onnx.min_sqnr.is_none() || !args.recipe.calibration.calib.is_empty() {
        return Ok(());
    }
    let failure = Failure::new(Kind::Usage, "--min-sqnr needs samples to measure the result on");
    Err(failure.with_hint(Some("give some with --data".to_owned())))
}

/// Opens the graph in ONNX Runtime, where that should run it: not with `--runtime rten`, nor where it is known that it does not.
///
/// # Errors
/// ONNX Runtime refuses it.
fn open(args: &QuantizeArgs, staged: &Staged, runs: bool, cancelled: &AtomicBool) -> Result<Opening, Failure> {
    let engine = &args.recipe.onnx.engine;
    if args.finish.no_verify || !runs || engine.runtime == RuntimeChoice::Rten {
        return Ok(Opening::Unknown);
    }
    opening::accept(staged.path(), engine.runtime_library.as_deref(), cancelled)
}

pub(super) fn no_output() -> Failure {
    Failure::new(Kind::Usage, "no output file is given")
        .with_hint(Some("give one with -o, e.g. -o model.int8.onnx".to_owned()))
}

/// Refuses an output that exists, or that is no file to be.
pub fn check_output(output: &Path, overwrite: bool) -> Result<(), Failure> {
    let shown = printable(&output.to_string_lossy());
    let usage = |message: String, hint: &str| Failure::new(Kind::Usage, message).with_hint(Some(hint.to_owned()));
    if !is_graph(output) {
        return Err(usage(format!("{shown} is no name of an ONNX graph"), "end it with .onnx"));
    }
    if output.is_dir() {
        return Err(usage(format!("{shown} is a directory"), "name a file in it"));
    }
    if output.exists() && !output.is_file() {
        return Err(usage(format!("{shown} is no regular file"), "choose another name with -o"));
    }
    refuse_existing(output, overwrite)?;
    refuse_stray_data(output)
}

fn plan(args: &QuantizeArgs, spill: &Spill) -> Result<Prepared, Failure> {
    let Resolved { recipe, passes } = recipe::recipe(&args.recipe)?;
    let model = read(&args.recipe.model)?;
    Ok(model::pool(&args.run)?.install(|| prepare(model, recipe, &passes, Some(spill)))?)
}

/// Opens the data; `None` where nothing depends on them.
fn samples(args: &QuantizeArgs, prepared: &Prepared, printer: &Printer) -> Result<Option<Samples>, Failure> {
    if !prepared.needs_data() {
        if !args.recipe.calibration.calib.is_empty() {
            printer.note("this recipe does not need calibration data: the result is measured on them");
        }
        return Ok(None);
    }
    let (samples, _) = calibration(&args.recipe, &prepared.model.graph, printer)?;
    Ok(Some(samples))
}

/// What algorithms see, where there are data.
fn data<'a>(
    samples: Option<&'a mut Samples>,
    runtime: &RuntimeOptions,
    cancelled: &'a AtomicBool,
    progress: &'a mut (dyn FnMut(u64, u64) + Send),
) -> Option<Data<'a>> {
    samples.map(|samples| Data { samples, runtime: runtime.clone(), cancelled, progress })
}

/// Runs the float model over the data. Returns the engine, none where no range depends on data.
fn calibrate(
    prepared: &Prepared,
    observation: &mut Observation,
    data: Option<&mut Data<'_>>,
    printer: &Printer,
) -> Result<Option<String>, Failure> {
    let Some(data) = data.filter(|_| !observation.tensors().is_empty()) else { return Ok(None) };
    let progress = Progress::new(printer, Unit::Samples);
    let mut watch = progress.watch();
    let (model, runtime) = (&prepared.model, &data.runtime);
    Ok(Some(observe(model, observation, data.samples, runtime, &mut watch, data.cancelled)?))
}

/// What was made.
struct Made<'a> {
    source: &'a Path,
    output: &'a Path,
    /// Whether it got its name.
    is_written: bool,
    bytes: u64,
    engine: Option<String>,
    report: Report,
    opening: Opening,
    quality: Measured,
    seconds: f64,
}

/// What algorithms gained: each layer for those who ask, the number of better ones for all.
fn tell_gains(gains: &[LayerGain], printer: &Printer) {
    let decibels = |sqnr: Option<f64>| sqnr.map_or_else(|| "exact".to_owned(), |sqnr| format!("{sqnr:.1} dB"));
    for gain in gains {
        let (before, after) = (decibels(gain.sqnr_before), decibels(gain.sqnr_after));
        printer.detail(&format!("`{}` ({}): {before} to {after}", printable(&gain.layer), gain.operator));
    }
    let better = gains.iter().filter(|gain| gain.loss_after < gain.loss_before).count();
    if !gains.is_empty() {
        let layers = counts::number(gains.len(), "layer");
        printer.note(&format!("the error of {better} of {layers} fell; --verbose lists each"));
    }
}

/// Which calibration methods were taken where they were to be found: of each tensor for those who ask, their numbers for all.
fn tell_methods(tensors: &[TensorReport], printer: &Printer) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (tensor, method) in tensors.iter().filter_map(|tensor| Some((tensor, tensor.method?))) {
        *counts.entry(method).or_default() += 1;
        printer.detail(&format!("`{}`: range by {method}", printable(&tensor.name)));
    }
    if !counts.is_empty() {
        let counts: Vec<String> = counts.iter().map(|(method, count)| format!("{count} by {method}")).collect();
        printer.note(&format!("ranges found by the method that loses least: {}", counts.join(", ")));
    }
}

/// Bytes of a model: its file, and those that its tensors lie in.
pub(super) fn model_size(path: &Path) -> u64 {
    let external = external_files(path).unwrap_or_default();
    let files = std::iter::once(path).chain(external.iter().map(PathBuf::as_path));
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}

impl Made<'_> {
    fn object(&self) -> Value {
        json!({
            "output": self.is_written.then(|| full_path(self.output).to_string_lossy().into_owned()),
            "format": "onnx",
            "source_bytes": model_size(self.source),
            "output_bytes": self.bytes,
            "seconds": self.seconds,
            "engine": self.engine,
            "report": self.report,
            "onnxruntime": self.opening.object(),
            "quality": self.quality.object(),
        })
    }

    /// Writes the object that `--json` prints to a file.
    fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(&versioned("quantize", self.object()))
            .map_err(|e| Failure::internal(e.to_string()))?;
        let shown = printable(&path.to_string_lossy()).to_string();
        write_file(path, (text + "\n").as_bytes()).map_err(|e| Failure::system(format!("cannot write {shown}: {e}")))
    }

    fn tell(&self, printer: &Printer) -> Result<(), Failure> {
        let (before, after) = (model_size(self.source), self.bytes);
        let report = &self.report;
        if printer.is_json() {
            return printer.json("quantize", &self.object());
        }
        for (name, count) in &report.limited {
            printer.detail(&format!("`{}`: {} limited", printable(name), counts::number(count, "value")));
        }
        if !report.limited.is_empty() {
            let values: usize = report.limited.iter().map(|(_, count)| count).sum();
            printer.note(&format!(
                "{values} values of {} constants are beyond the 16-bit type's range and limited to it; --verbose names them",
                report.limited.len()
            ));
        }
        if let [first, ..] = &report.not_numbers[..] {
            let (count, first) = (report.not_numbers.len(), printable(first));
            let count = counts::number(count, "tensor");
            printer.note(&format!("the float model computes NaN in {count}, `{first}` for one, on these data"));
        }
        tell_methods(&report.tensors, printer);
        tell_gains(&report.gains, printer);
        for (name, reason) in &report.left_in_float {
            printer.detail(&format!("`{}` stays in float: {reason}", printable(name)));
        }
        if !report.left_in_float.is_empty() {
            let left = match report.left_in_float.len() {
                1 => "1 tensor or node stays".to_owned(),
                count => format!("{count} tensors or nodes stay"),
            };
            printer.note(&format!("{left} in float; --verbose lists names and reasons"));
        }
        for name in &report.wide_biases {
            printer.detail(&format!("`{}`: int16 codes with a scale of their own", printable(name)));
        }
        if !report.wide_biases.is_empty() {
            let biases = match report.wide_biases.len() {
                1 => "1 bias does".to_owned(),
                count => format!("{count} biases do"),
            };
            printer.note(&format!(
                "{biases} not fit int32 codes with the scale of the product: stored as int16; --verbose lists names"
            ));
        }
        if let Some(saturation) = &report.saturation {
            printer.note(&format!("{saturation}: {SATURATION_HINT}"));
        }
        let samples = counts::number(report.samples, "sample");
        let engine = self.engine.as_ref().map_or_else(String::new, |engine| format!(", {samples} on {engine}"));
        printer.summary(&format!(
            "{}; {} to {}{engine}; {:.1} s",
            report.counts,
            size::bytes(before),
            size::bytes(after),
            self.seconds,
        ));
        self.quality.tell(printer);
        match self.is_written {
            true => printer.data(&full_path(self.output).to_string_lossy()),
            false => Ok(()),
        }
    }
}
