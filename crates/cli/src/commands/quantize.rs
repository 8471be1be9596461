//! `kvant quantize`: plans, checks, works, and says how to load the result.

use super::plan::{View, show};
use crate::args::QuantizeArgs;
use crate::calibration::{Calibration, clear_away};
use crate::escape::printable;
use crate::failure::{Failure, Kind};
use crate::model::Planned;
use crate::outputs::{Delivered, Outputs};
use crate::printer::Printer;
use crate::progress::{Progress, Unit};
use crate::{delivery, gguf, interrupt, layer_table, loading, model, onnx, size};
use kvant_container::Checkpoint;
use kvant_llm::blockwise::BlockwiseReport;
use kvant_llm::engine::{self, Begun, Done, EngineError, Output, Placed};
use kvant_llm::forward::Decoder;
use kvant_llm::plan::Plan;
use serde_json::json;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Quantizes a model.
///
/// # Errors
/// Whatever can be refused, before anything is written; then what the system or the weights say.
pub fn run(mut args: QuantizeArgs, printer: &Printer) -> Result<(), Failure> {
    model::complete(&mut args.recipe)?;
    let args = &args;
    if onnx::is_graph(&args.recipe.model) {
        return onnx::quantize::run(args, printer);
    }
    if let Some(recipe) = gguf::recipe(&args.recipe)? {
        return gguf::quantize::run(args, recipe, printer);
    }
    let begun = Instant::now();
    let outputs = args.output.as_deref().map(|output| Outputs::of(&args.recipe, args.finish, &args.run, output));
    let planned = model::plan(&args.recipe, &gguf::file_name(outputs.as_ref().and_then(Outputs::file)))?;
    if !args.finish.no_verify {
        planned.foresee()?;
    }
    if let Some(outputs) = &outputs {
        outputs.check(&planned)?;
    }
    match &outputs {
        _ if args.dry_run => show(&planned, &args.recipe, &View::usual(&args.run, &args.recipe.calibration), printer),
        Some(outputs) => {
            let Planned { checkpoint, plan, .. } = planned;
            plan.notices.iter().for_each(|notice| printer.note(notice));
            View::usual(&args.run, &args.recipe.calibration).note_shortage(&plan, printer);
            let cancelled = interrupt::flag();
            let (model, data) = (args.recipe.model.as_path(), &args.recipe.calibration);
            let target = outputs.checkpoint();
            let source = Calibration {
                checkpoint: &checkpoint,
                model,
                target,
                args: data,
                run: &args.run,
                cancelled: &cancelled,
            };
            let work =
                Work { args, target, outputs, checkpoint: &checkpoint, calibration: &source, cancelled: &cancelled };
            let made = match plan.blocks.is_empty() {
                true => work.band_by_band(plan, printer)?,
                false => work.block_by_block(plan, printer)?,
            };
            let Made { plan, output, done, blocks } = made;
            let delivered = outputs.deliver(&plan, output, &cancelled, printer)?;
            conclude(&Report { plan, delivered, done, blocks, time: begun.elapsed() }, printer)
        }
        None => {
            Err(Failure::new(Kind::Usage, "no output directory is given")
                .with_hint(Some("give one with -o".to_owned())))
        }
    }
}

/// What was made.
struct Made {
    plan: Plan,
    output: Placed,
    done: Done,
    /// What became of layers, where that depended on data.
    blocks: Option<BlockwiseReport>,
}

/// What a run needs besides its plan.
struct Work<'a> {
    args: &'a QuantizeArgs,
    target: &'a Path,
    outputs: &'a Outputs<'a>,
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
        let output = match self.begin(&plan, printer)? {
            Begun::Working(output) => output,
            Begun::Finished(output) => return self.finished(plan, output),
        };
        self.rest(plan, *output, None, printer)
    }

    /// Runs the recipe's algorithms block by block, then does what is left.
    fn block_by_block(&self, plan: Plan, printer: &Printer) -> Result<Made, Failure> {
        let decoder = Decoder::open(self.checkpoint)?;
        let loaded = self.calibration.load(&decoder, printer)?;
        let plan = self.calibration.plan_for(plan, &loaded);
        let output = match self.begin(&plan, printer)? {
            Begun::Working(output) => output,
            Begun::Finished(output) => return self.finished(plan, output),
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

    fn begin(&self, plan: &Plan, printer: &Printer) -> Result<Begun, Failure> {
        self.outputs.check_others(plan)?;
        delivery::begin(plan, (&self.args.recipe.model, self.target), self.args.finish, printer)
    }

    fn finished(&self, plan: Plan, output: Placed) -> Result<Made, Failure> {
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
        let gone = run.as_ref().is_err_and(EngineError::is_final);
        let settled = delivery::settle(output, run, (&plan, self.checkpoint), self.args.finish);
        if gone || settled.is_ok() {
            clear_away(self.target)?;
        }
        let (output, done) = settled?;
        Ok(Made { plan, output, done, blocks })
    }
}

/// What is said at the end.
struct Report {
    plan: Plan,
    delivered: Delivered,
    done: Done,
    blocks: Option<BlockwiseReport>,
    time: Duration,
}

/// The path on stdout, or one object; the summary on stderr.
fn conclude(report: &Report, printer: &Printer) -> Result<(), Failure> {
    if let Some(table) = report.blocks.as_ref().and_then(layer_table::text) {
        printer.summary(&table);
    }
    printer.summary(&printable(&report.text()));
    if printer.is_json() {
        printer.json(&report.json())
    } else {
        let outputs = std::iter::once(&report.delivered.main.output).chain(&report.delivered.also);
        printer.data(&outputs.map(|output| output.display().to_string()).collect::<Vec<_>>().join("\n"))
    }
}

impl Report {
    fn text(&self) -> String {
        let (before, after) = self.sizes();
        let lines = [
            ("layers", format!("{} to {}", self.plan.layers.len(), self.plan.recipe.scheme_name())),
            ("size", format!("{} to {}, {}", size::bytes(before), size::bytes(after), size::ratio(before, after))),
            (
                "bits per weight",
                format!("{:.2} in quantized layers, scales included", self.delivered.main.bits_per_weight),
            ),
            ("time", size::duration(self.time)),
        ];
        let made = &self.delivered.main;
        loading::summary(lines, &made.loaders, &made.output)
    }

    fn json(&self) -> serde_json::Value {
        let (before, after) = self.sizes();
        let made = &self.delivered.main;
        json!({
            "output": made.output.display().to_string(),
            "also": self.delivered.also.iter().map(|output| output.display().to_string()).collect::<Vec<_>>(),
            "export": made.format,
            "recipe": self.plan.recipe,
            "architecture": self.plan.architecture,
            "family": self.plan.family,
            "quantized_layers": self.plan.layers.len(),
            "kept_tensors": self.plan.kept.len(),
            "source_bytes": before,
            "output_bytes": after,
            "bits_per_weight": made.bits_per_weight,
            "seconds": self.time.as_secs_f64(),
            "jobs": self.done.jobs,
            "resumed_jobs": self.done.resumed,
            "loading": loading::json(&made.loaders, &made.output),
            "notices": self.plan.notices,
            "calibration": self.plan.record,
        })
    }

    fn sizes(&self) -> (u64, u64) {
        (self.plan.source_bytes, self.delivered.main.bytes)
    }
}
