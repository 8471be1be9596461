//! `kvant quantize`: plans, checks, works, and says how to load the result.

use super::plan::{View, show};
use crate::args::QuantizeArgs;
use crate::calibration::{Calibration, clear_away};
use crate::escape::printable;
use crate::failure::{Failure, Kind};
use crate::gate::Gate;
use crate::model::Planned;
use crate::outputs::{self, Delivered, Outputs};
use crate::printer::Printer;
use crate::progress::{Progress, Unit};
use crate::{counts, delivery, gate, gguf, interrupt, layer_table, loading, model, onnx, size};
use kvant_container::Checkpoint;
use kvant_llm::blockwise::BlockwiseReport;
use kvant_llm::calibration::data::Options;
use kvant_llm::engine::{self, Begun, Claim, Deliverable, Done, EngineError, Output, Placed};
use kvant_llm::export::Export;
use kvant_llm::finite;
use kvant_llm::forward::Decoder;
use kvant_llm::plan::Plan;
use kvant_quant::scheme::EVALUATION_ONLY;
use serde_json::{Value, json};
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
    gate::check(args, onnx::is_graph(&args.recipe.model))?;
    if onnx::is_graph(&args.recipe.model) {
        return onnx::quantize::run(args, printer);
    }
    if let Some(recipe) = gguf::recipe(&args.recipe)? {
        return gguf::quantize::run(args, recipe, printer);
    }
    let begun = Instant::now();
    let outputs = args.output.as_deref().map(|output| Outputs::of(&args.recipe, args.finish, &args.run, output));
    let file = gguf::file_name(outputs.as_ref().and_then(Outputs::file));
    let planned = if args.dry_run { model::outline(&args.recipe, &file)? } else { model::plan(&args.recipe, &file)? };
    if !args.finish.no_verify {
        planned.foresee()?;
    }
    if let Some(outputs) = &outputs {
        outputs.check(&planned)?;
    }
    if args.dry_run {
        gate::foresee(args, &planned.checkpoint)?;
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
            if !args.finish.no_verify || plan.needs_calibration() || !plan.blocks.is_empty() {
                finite::check_kept(&plan, &checkpoint)?;
            }
            let calibrates = plan.needs_calibration() || !plan.blocks.is_empty();
            let claim = outputs.claim()?;
            let gate = Gate::open(args, &checkpoint, target, calibrates, printer)?;
            let work = Work {
                args,
                target,
                outputs,
                checkpoint: &checkpoint,
                calibration: &source,
                gate: gate.as_ref(),
                cancelled: &cancelled,
            };
            let made = match plan.blocks.is_empty() {
                true => work.band_by_band(plan, claim, printer)?,
                false => work.block_by_block(plan, claim, printer)?,
            };
            let Made { plan, output, done, blocks } = made;
            let delivered = outputs.deliver(&plan, output, &cancelled, printer)?;
            let measured = gate.and_then(|gate| gate.measured());
            conclude(&Report { plan, delivered, done, blocks, measured, time: begun.elapsed() }, printer)
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
    gate: Option<&'a Gate<'a>>,
    cancelled: &'a AtomicBool,
}

impl Work<'_> {
    /// Rounds to nearest; where activations have static scales, those are found before.
    fn band_by_band(&self, plan: Plan, claim: Claim, printer: &Printer) -> Result<Made, Failure> {
        let data = &self.args.recipe.calibration;
        let plan = match plan.needs_calibration() {
            true => self.calibration.complete(plan, printer)?,
            false => plan,
        };
        if plan.sites.is_empty() && !data.calib.is_empty() {
            printer.note(match self.gate {
                Some(_) if self.args.gate.eval.is_none() => {
                    "this recipe does not need calibration data: the result is measured on them"
                }
                _ => "calibration data ignored: this recipe does not need any",
            });
        }
        let output = match self.begin(&plan, claim)? {
            Begun::Working(output) => output,
            Begun::Finished(output) => return self.finished(plan, output, printer),
        };
        self.rest(plan, *output, None, printer)
    }

    /// Runs the recipe's algorithms block by block, then does what is left.
    fn block_by_block(&self, plan: Plan, claim: Claim, printer: &Printer) -> Result<Made, Failure> {
        let decoder = Decoder::open(self.checkpoint)?;
        let held_out = Options::tenth(self.args.recipe.calibration.num_samples);
        let loaded = self.calibration.load(&decoder, held_out, printer)?;
        let plan = self.calibration.plan_for(plan, &loaded);
        let output = match self.begin(&plan, claim)? {
            Begun::Working(output) => output,
            Begun::Finished(output) => return self.finished(plan, output, printer),
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

    fn begin(&self, plan: &Plan, claim: Claim) -> Result<Begun, Failure> {
        self.outputs.check_others(plan)?;
        Ok(Output::begin_claimed(plan, &self.args.recipe.model, claim, self.args.finish.overwrite)?)
    }

    fn finished(&self, plan: Plan, output: Placed, printer: &Printer) -> Result<Made, Failure> {
        let output = output.keep_if(&plan.form(), |made| self.judge(made, printer))?;
        clear_away(self.target)?;
        let jobs = plan.jobs().len();
        Ok(Made { plan, output, done: Done { jobs, resumed: jobs }, blocks: None })
    }

    fn judge(&self, made: &Path, printer: &Printer) -> Result<(), Failure> {
        self.gate.map_or(Ok(()), |gate| gate.judge(made, printer))
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
            "{} in {} of work, {threads} threads",
            counts::number(plan.layers.len(), "layer"),
            counts::number(plan.jobs().len(), "unit")
        ));
        let progress = Progress::new(printer, Unit::Bytes);
        let run = engine::run(&plan, self.checkpoint, &output, threads, self.cancelled, &progress);
        drop(progress);
        let gone = run.as_ref().is_err_and(EngineError::is_final);
        let judge = |made: &Path| self.judge(made, printer);
        let settled = delivery::settle_if(output, run, (&plan, self.checkpoint), self.args.finish, judge);
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
    /// How far the output is from its source, where that was asked for.
    measured: Option<Value>,
    time: Duration,
}

/// The path on stdout, or one object; the summary on stderr.
fn conclude(report: &Report, printer: &Printer) -> Result<(), Failure> {
    if let Some(table) = report.blocks.as_ref().and_then(|blocks| layer_table::text(blocks, printer.width())) {
        printer.summary(&table);
    }
    report.blocks.iter().flat_map(layer_table::warnings).for_each(|warning| printer.warning(&warning));
    report.unloadable().for_each(|made| {
        let output = made.output.display();
        printer.warning(&format!("no known loader takes {output}: `kvant verify {output}` says why"));
    });
    printer.summary(&printable(&report.text()));
    if printer.is_json() {
        printer.json("quantize", &report.json())
    } else {
        let outputs = report.delivered.all().map(|made| made.output.display().to_string());
        printer.data(&outputs.collect::<Vec<_>>().join("\n"))
    }
}

impl Report {
    fn text(&self) -> String {
        let head = [counts::layers(&self.plan)];
        let is_evaluated = self.plan.layers.iter().any(|layer| layer.scheme.weight.is_for_evaluation_only());
        let tail = [("time", size::duration(self.time))].into_iter();
        let tail = tail.chain(is_evaluated.then(|| ("use", EVALUATION_ONLY.to_owned())));
        let tail = tail.chain(self.measured.as_ref().map(gate::line));
        if self.delivered.also.is_empty() {
            let made = &self.delivered.main;
            let lines = head.into_iter().chain(self.output_lines(made)).chain(tail).chain(bare(made));
            return loading::summary(lines, &made.loaders, &made.output);
        }
        let outputs = self.delivered.all().map(|made| {
            let lines = [("format", made.format.to_owned())].into_iter().chain(self.output_lines(made));
            loading::summary(lines.chain(bare(made)), &made.loaders, &made.output)
        });
        let head = loading::summary(head.into_iter().chain(tail), &[], Path::new(""));
        std::iter::once(head).chain(outputs).collect::<Vec<_>>().join("\n\n")
    }

    /// Outputs that no loader takes although the family is known.
    fn unloadable(&self) -> impl Iterator<Item = &outputs::Made> {
        let is_bare = |made: &outputs::Made| made.format == Export::Tensors.row().name;
        self.delivered.all().filter(move |made| self.plan.family.is_some() && made.loaders.is_empty() && !is_bare(made))
    }

    /// What differs from output to output.
    fn output_lines(&self, made: &outputs::Made) -> [counts::Line; 2] {
        [counts::sizes(self.plan.source_bytes, made.bytes), counts::bits(made.bits_per_weight, "layers")]
    }

    fn json(&self) -> serde_json::Value {
        let made = &self.delivered.main;
        json!({
            "output": made.output.display().to_string(),
            "also": self.delivered.also.iter().map(|made| made.output.display().to_string()).collect::<Vec<_>>(),
            "outputs": self.delivered.all().map(output_json).collect::<Vec<_>>(),
            "format": made.format,
            "recipe": self.plan.recipe,
            "architecture": self.plan.architecture,
            "family": self.plan.family,
            "quantized_layers": self.plan.layers.len(),
            "kept_tensors": self.plan.kept.len(),
            "source_bytes": self.plan.source_bytes,
            "output_bytes": made.bytes,
            "bits_per_weight": made.bits_per_weight,
            "seconds": self.time.as_secs_f64(),
            "jobs": self.done.jobs,
            "resumed_jobs": self.done.resumed,
            "loading": loading::json(&made.loaders, &made.output),
            "notices": self.plan.notices,
            "calibration": self.plan.record,
            "evaluation": self.measured,
        })
    }
}

/// That no runtime loads an output, where that is so.
fn bare(made: &outputs::Made) -> Option<counts::Line> {
    (made.format == Export::Tensors.row().name).then(|| ("load it with", loading::NO_RUNTIME.to_owned()))
}

/// One of the outputs.
fn output_json(made: &outputs::Made) -> serde_json::Value {
    json!({
        "output": made.output.display().to_string(),
        "format": made.format,
        "output_bytes": made.bytes,
        "bits_per_weight": made.bits_per_weight,
        "loading": loading::json(&made.loaders, &made.output),
    })
}
