//! `kvant quantize model.onnx`.

use super::data::calibration;
use super::verify::accept;
use super::{is_graph, read, recipe, runtime};
use crate::args::{ExternalWhen, QuantizeArgs};
use crate::escape::printable;
use crate::failure::{Failure, Kind};
use crate::outputs::{check_writable, full_path};
use crate::printer::Printer;
use crate::progress::{Progress, Unit};
use crate::{interrupt, model, size};
use kvant_container::directory_of;
use kvant_container::onnx::{ExternalData, Spill, external_data_path, external_files, sync_written, write_unless};
use kvant_onnx::algorithm::{Data, LayerGain};
use kvant_onnx::calibration::{Observation, observe};
use kvant_onnx::data::Samples;
use kvant_onnx::quantize::{Prepared, prepare};
use kvant_onnx::report::{Report, TensorReport};
use kvant_onnx::runtime::RuntimeOptions;
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
    check_output(output, &args.recipe.model, args.finish.overwrite)?;
    args.recipe.onnx.report.as_deref().map_or(Ok(()), check_writable)?;
    let cancelled = interrupt::flag();
    let directory = directory_of(output);
    let spill = Spill::new(directory)?.cancelled_by(cancelled.clone());
    let mut prepared = plan(args, &spill)?;
    prepared.notices().iter().for_each(|notice| printer.note(notice));
    let mut samples = samples(args, &prepared, printer)?;
    let pool = model::pool(&args.run)?;
    if samples.is_some() {
        pool.install(|| prepared.check_weights())?;
    }
    let runtime = runtime(&args.recipe.onnx.engine, &args.run);
    let mut quiet = |_, _| {};
    let mut seen = data(samples.as_mut(), &runtime, &cancelled, &mut quiet);
    pool.install(|| prepared.transform(seen.as_mut(), Some(&spill)))?;
    let mut observation = prepared.observation();
    let engine = calibrate(&prepared, &mut observation, seen.as_mut(), printer)?;
    let (quantized, report) = {
        let progress = Progress::new(printer, Unit::Layers);
        let mut watch = progress.watch();
        let mut seen = data(samples.as_mut(), &runtime, &cancelled, &mut watch);
        pool.install(|| prepared.finish(&observation, seen.as_mut(), Some(&spill)))?
    };
    if !args.finish.no_verify {
        accept(&quantized, output)?;
    }
    let external = match args.recipe.onnx.external_data {
        ExternalWhen::Auto => ExternalData::Auto,
        ExternalWhen::Always => ExternalData::Always,
        ExternalWhen::Never => ExternalData::Never,
    };
    write_unless(quantized, output, external, &cancelled)?;
    if args.finish.sync {
        sync_written(output)?;
    }
    let made = Made { source: &args.recipe.model, output, engine, report, seconds: begun.elapsed().as_secs_f64() };
    if let Some(path) = &args.recipe.onnx.report {
        made.write(path)?;
    }
    made.tell(printer)
}

pub(super) fn no_output() -> Failure {
    Failure::new(Kind::Usage, "no output file is given")
        .with_hint(Some("give one with -o, e.g. -o model.int8.onnx".to_owned()))
}

/// Refuses an output that exists, that is the source, or that is no file to be.
pub fn check_output(output: &Path, source: &Path, overwrite: bool) -> Result<(), Failure> {
    let shown = printable(&output.to_string_lossy());
    let usage = |message: String, hint: &str| Failure::new(Kind::Usage, message).with_hint(Some(hint.to_owned()));
    if !is_graph(output) {
        return Err(usage(format!("{shown} is no name of an ONNX graph"), "end it with .onnx"));
    }
    let same = |a: &Path, b: &Path| matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b);
    if same(output, source) {
        let failure = Failure::new(Kind::Invalid, format!("{shown} is the source"));
        return Err(failure.with_hint(Some("give another name with -o".to_owned())));
    }
    if output.is_dir() {
        return Err(usage(format!("{shown} is a directory"), "name a file in it"));
    }
    let data = external_data_path(output);
    if data.exists() && is_graph(source) && external_files(source)?.iter().any(|file| same(file, &data)) {
        let message = format!("{} holds weights of the source", printable(&data.to_string_lossy()));
        return Err(usage(message, "give another name with -o"));
    }
    let existing = [output.to_path_buf(), data].into_iter().find(|path| path.exists());
    match existing {
        Some(path) if !overwrite => {
            let message = format!("{} exists", printable(&path.to_string_lossy()));
            Err(Failure::new(Kind::Invalid, message).with_hint(Some("replace it with --overwrite".to_owned())))
        }
        _ => Ok(()),
    }
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
            printer.note("nothing in this recipe needs calibration data: they are not read");
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
    engine: Option<String>,
    report: Report,
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
        printer.note(&format!("the error of {better} of {} layers fell; --verbose tells of each", gains.len()));
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

/// Bytes of a model, its external data included.
pub(super) fn model_size(path: &Path) -> u64 {
    let files: [PathBuf; 2] = [path.to_path_buf(), external_data_path(path)];
    files.iter().filter_map(|file| file.metadata().ok()).map(|m| m.len()).sum()
}

impl Made<'_> {
    fn object(&self) -> Value {
        json!({
            "output": full_path(self.output).to_string_lossy(),
            "bytes_before": model_size(self.source),
            "bytes_after": model_size(self.output),
            "seconds": self.seconds,
            "engine": self.engine,
            "report": self.report,
        })
    }

    /// Writes the object that `--json` prints to a file.
    fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(&self.object()).map_err(|e| Failure::internal(e.to_string()))?;
        let shown = printable(&path.to_string_lossy()).to_string();
        std::fs::write(path, text + "\n").map_err(|e| Failure::system(format!("cannot write {shown}: {e}")))
    }

    fn tell(&self, printer: &Printer) -> Result<(), Failure> {
        let (before, after) = (model_size(self.source), model_size(self.output));
        let report = &self.report;
        if printer.is_json() {
            return printer.json(&self.object());
        }
        for (name, count) in &report.limited {
            printer.detail(&format!("`{}`: {count} values are limited", printable(name)));
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
            printer.note(&format!("the float model computes NaN in {count} tensors, `{first}` for one, on these data"));
        }
        tell_methods(&report.tensors, printer);
        tell_gains(&report.gains, printer);
        for (name, reason) in &report.left_in_float {
            printer.detail(&format!("`{}` stays in float: {reason}", printable(name)));
        }
        if !report.left_in_float.is_empty() {
            printer
                .note(&format!("{} tensors or nodes stay in float; --verbose names them", report.left_in_float.len()));
        }
        if let Some(saturation) = &report.saturation {
            printer.note(&format!("{saturation}: {SATURATION_HINT}"));
        }
        let engine = self.engine.as_ref().map_or_else(String::new, |e| format!(", {} samples on {e}", report.samples));
        printer.summary(&format!(
            "{} of {} nodes quantized, {} tensors; {} to {}{engine}; {:.1} s",
            report.quantized_nodes,
            report.nodes,
            report.tensors.len(),
            size::bytes(before),
            size::bytes(after),
            self.seconds,
        ));
        printer.data(&full_path(self.output).to_string_lossy())
    }
}
