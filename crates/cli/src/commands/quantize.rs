//! `kvant quantize`: plans, checks, works, and says how to load the result.

use super::convert::{Manner, Request};
use super::plan::{View, show};
use crate::args::QuantizeArgs;
use crate::calibration::{Calibration, clear_away};
use crate::escape::printable;
use crate::failure::{Failure, Kind};
use crate::printer::Printer;
use crate::progress::{Progress, Unit};
use crate::{gguf, interrupt, layer_table, loading, model, onnx, size};
use kvant_container::{Checkpoint, Durability};
use kvant_llm::blockwise::BlockwiseReport;
use kvant_llm::conversion::Target;
use kvant_llm::engine::{self, Begun, Done, EngineError, Output};
use kvant_llm::export::Export;
use kvant_llm::forward::Decoder;
use kvant_llm::plan::Plan;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Quantizes a model.
///
/// # Errors
/// Whatever can be refused, before anything is written; then what the system or the weights say.
pub fn run(args: &QuantizeArgs, printer: &Printer) -> Result<(), Failure> {
    if onnx::is_graph(&args.recipe.model) {
        return onnx::quantize::run(args, printer);
    }
    if let Some(recipe) = gguf::recipe(&args.recipe)? {
        return gguf::quantize::run(args, recipe, printer);
    }
    let begun = Instant::now();
    let (checkpoint, plan) = model::plan(&args.recipe)?;
    let outputs = args.output.as_deref().map(|output| outputs(&args.recipe.format, output)).unwrap_or_default();
    for output in &outputs {
        Output::check(&plan, &args.recipe.model, output, args.overwrite)?;
    }
    match outputs.first() {
        _ if args.dry_run => show(&plan, &checkpoint, &View::usual(&args.run, &args.recipe.calibration), printer),
        Some(target) => {
            plan.notices.iter().for_each(|notice| printer.note(notice));
            let cancelled = interrupt::flag();
            let (model, data) = (args.recipe.model.as_path(), &args.recipe.calibration);
            let target = target.as_path();
            let source = Calibration {
                checkpoint: &checkpoint,
                model,
                target,
                args: data,
                run: &args.run,
                cancelled: &cancelled,
            };
            let work = Work { args, target, checkpoint: &checkpoint, calibration: &source, cancelled: &cancelled };
            let made = match plan.blocks.is_empty() {
                true => work.band_by_band(plan, printer)?,
                false => work.block_by_block(plan, printer)?,
            };
            let also = convert_all(args, &made.output, &outputs, &cancelled, printer)?;
            conclude(&Report { made, also, time: begun.elapsed() }, printer)
        }
        None => {
            Err(Failure::new(Kind::Usage, "no output directory is given")
                .with_hint(Some("give one with -o".to_owned())))
        }
    }
}

/// The output directories: one, or one for each format.
fn outputs(formats: &[Export], output: &Path) -> Vec<PathBuf> {
    match formats {
        [] | [_] => vec![output.to_owned()],
        formats => formats.iter().map(|format| output.join(format.row().name)).collect(),
    }
}

/// Converts what was made for the first format to the others, which were found to hold it.
fn convert_all(
    args: &QuantizeArgs,
    made: &Path,
    outputs: &[PathBuf],
    cancelled: &AtomicBool,
    printer: &Printer,
) -> Result<Vec<PathBuf>, Failure> {
    let max_shard_size = args.recipe.max_shard_size.map(|size| size.0);
    let manner = Manner {
        threads: model::threads(&args.run),
        overwrite: args.overwrite,
        sync: args.sync,
        no_verify: args.no_verify,
        cancelled,
    };
    let others = args.recipe.format.iter().zip(outputs).skip(1);
    let convert = |(format, output): (&Export, &PathBuf)| {
        let target = if *format == Export::Fake { Target::Float(None) } else { Target::Codes(*format) };
        super::convert::make(made, output, &Request { target, max_shard_size, manner }, printer)
    };
    others.map(convert).collect()
}

/// What was made.
struct Made {
    plan: Plan,
    output: PathBuf,
    done: Done,
    /// What became of layers, where that depended on data.
    blocks: Option<BlockwiseReport>,
}

/// What a run needs besides its plan.
struct Work<'a> {
    args: &'a QuantizeArgs,
    target: &'a Path,
    checkpoint: &'a Checkpoint,
    calibration: &'a Calibration<'a>,
    cancelled: &'a AtomicBool,
}

impl Work<'_> {
    /// Rounds to nearest; where activations have static scales, those are found before.
    fn band_by_band(&self, plan: Plan, printer: &Printer) -> Result<Made, Failure> {
        let data = &self.args.recipe.calibration;
        let plan = match plan.needs_calibration() {
            true => self.calibration.complete(plan, printer)?,
            false => plan,
        };
        if plan.sites.is_empty() && !data.calib.is_empty() {
            printer.note("nothing in this recipe needs calibration data: they are not read");
        }
        let output = match self.begin(&plan)? {
            Begun::Working(output) => output,
            Begun::Finished(path) => return self.finished(plan, path),
        };
        self.rest(plan, *output, None, printer)
    }

    /// Runs the recipe's algorithms block by block, then does what is left.
    fn block_by_block(&self, plan: Plan, printer: &Printer) -> Result<Made, Failure> {
        let decoder = Decoder::open(self.checkpoint)?;
        let loaded = self.calibration.load(&decoder, printer)?;
        let plan = self.calibration.plan_for(plan, &loaded);
        let output = match self.begin(&plan)? {
            Begun::Working(output) => output,
            Begun::Finished(path) => return self.finished(plan, path),
        };
        match self.calibration.quantize_blocks(&decoder, &loaded, plan, &output, printer) {
            Ok((plan, blocks)) => self.rest(plan, *output, Some(blocks), printer),
            Err(failure) => {
                // With such a model no rerun could finish what was begun.
                if failure.kind == Kind::Invalid {
                    output.discard()?;
                    clear_away(self.target)?;
                }
                Err(failure)
            }
        }
    }

    fn begin(&self, plan: &Plan) -> Result<Begun, Failure> {
        Ok(Output::begin(plan, &self.args.recipe.model, self.target, self.args.overwrite)?)
    }

    fn finished(&self, plan: Plan, output: PathBuf) -> Result<Made, Failure> {
        clear_away(self.target)?;
        let jobs = plan.jobs().len();
        Ok(Made { plan, output, done: Done { jobs, resumed: jobs }, blocks: None })
    }

    /// Does what is left of a plan, and gives the output its name.
    fn rest(
        &self,
        plan: Plan,
        output: Output,
        blocks: Option<BlockwiseReport>,
        printer: &Printer,
    ) -> Result<Made, Failure> {
        let threads = model::threads(&self.args.run);
        printer.detail(&format!(
            "{} layers in {} units of work, {threads} threads",
            plan.layers.len(),
            plan.jobs().len()
        ));
        let progress = Progress::new(printer, Unit::Bytes);
        let run = engine::run(&plan, self.checkpoint, &output, threads, self.cancelled, &progress);
        drop(progress);
        let done = match run {
            Ok(done) => done,
            Err(error) => {
                // With such a weight no rerun could finish what was begun.
                if matches!(error, EngineError::Weight { .. }) {
                    output.discard()?;
                }
                return Err(error.into());
            }
        };
        let durability = if self.args.sync { Durability::Disk } else { Durability::Process };
        let accept = |made: &Path| if self.args.no_verify { Ok(()) } else { engine::accept(&plan, made) };
        let output = output.finish_if(&plan, self.checkpoint, durability, accept)?;
        clear_away(self.target)?;
        Ok(Made { plan, output, done, blocks })
    }
}

/// What is said at the end.
struct Report {
    made: Made,
    /// The outputs in further formats.
    also: Vec<PathBuf>,
    time: Duration,
}

/// The path on stdout, or one object; the summary on stderr.
fn conclude(report: &Report, printer: &Printer) -> Result<(), Failure> {
    if let Some(table) = report.made.blocks.as_ref().and_then(layer_table::text) {
        printer.summary(&table);
    }
    printer.summary(&printable(&report.text()));
    if printer.is_json() {
        printer.json(&report.json())
    } else {
        let outputs = std::iter::once(&report.made.output).chain(&report.also);
        printer.data(&outputs.map(|output| output.display().to_string()).collect::<Vec<_>>().join("\n"))
    }
}

impl Report {
    fn text(&self) -> String {
        let (before, after) = self.sizes();
        let lines = [
            ("layers", format!("{} to {}", self.made.plan.layers.len(), self.made.plan.recipe.scheme_name())),
            ("size", format!("{} to {}, {}", size::bytes(before), size::bytes(after), size::ratio(before, after))),
            (
                "bits per weight",
                format!("{:.2} in quantized layers, scales included", self.made.plan.bits_per_weight()),
            ),
            ("time", size::duration(self.time)),
        ];
        let loaders = self.loading().into_iter().enumerate();
        let loading = loaders.map(|(i, (loader, line))| {
            let line = line.map(|line| format!(": {line}")).unwrap_or_default();
            (if i == 0 { "load it with" } else { "" }, format!("{loader}{line}"))
        });
        let all = lines.into_iter().chain(loading).map(|(name, value)| format!("{name:<15}  {value}"));
        all.collect::<Vec<_>>().join("\n")
    }

    fn json(&self) -> serde_json::Value {
        let (before, after) = self.sizes();
        let line = |(loader, line): (&str, Option<String>)| json!({ "loader": loader, "line": line });
        json!({
            "output": self.made.output.display().to_string(),
            "also": self.also.iter().map(|output| output.display().to_string()).collect::<Vec<_>>(),
            "export": self.made.plan.export.row().name,
            "recipe": self.made.plan.recipe,
            "architecture": self.made.plan.architecture,
            "family": self.made.plan.family,
            "quantized_layers": self.made.plan.layers.len(),
            "kept_tensors": self.made.plan.kept.len(),
            "source_bytes": before,
            "output_bytes": after,
            "bits_per_weight": self.made.plan.bits_per_weight(),
            "seconds": self.time.as_secs_f64(),
            "jobs": self.made.done.jobs,
            "resumed_jobs": self.made.done.resumed,
            "loading": self.loading().into_iter().map(line).collect::<Vec<_>>(),
            "notices": self.made.plan.notices,
            "calibration": self.made.plan.record,
        })
    }

    fn sizes(&self) -> (u64, u64) {
        (self.made.plan.source_bytes, self.made.plan.layout.total_size())
    }

    fn loading(&self) -> Vec<(&'static str, Option<String>)> {
        loading::lines(&self.made.plan.loaders(), &self.made.output)
    }
}
