//! `kvant quantize` where the output is a GGUF file: plans, checks, measures the importance of inputs where that is asked,
//! works, and says how to load the result.

use super::plan::{View, show};
use super::{check_data, file_name, note_data, plan_for};
use crate::args::QuantizeArgs;
use crate::calibration::{Calibration, clear_away};
use crate::delivery::{Delivery, check_runs, claim, foresee};
use crate::escape::printable;
use crate::failure::{Failure, Kind};
use crate::gate::{self, Gate};
use crate::outputs::{OutputKind, check_name, refuse_existing, tell_of_name};
use crate::printer::Printer;
use crate::progress::{Progress, Unit};
use crate::{counts, interrupt, loading, model, size};
use kvant_container::Checkpoint;
use kvant_llm::blockwise::State;
use kvant_llm::engine::{Done, Output, OutputError};
use kvant_llm::finite;
use kvant_llm::forward::Decoder;
use kvant_llm::gguf::imatrix::{self, Importance, Keep, Provenance};
use kvant_llm::gguf::{GgufPlan, GgufRecipe};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// The time of a measurement that a killed run may lose, besides that of a block.
const KEPT_EVERY: Duration = Duration::from_secs(20);

/// Writes a GGUF file.
///
/// # Errors
/// Whatever can be refused, before anything is written; then what the system or the weights say.
pub fn run(args: &QuantizeArgs, recipe: GgufRecipe, printer: &Printer) -> Result<(), Failure> {
    let begun = Instant::now();
    match args.dry_run {
        true => note_data(&args.recipe, &recipe, printer),
        false => check_data(&args.recipe, &recipe)?,
    }
    let (checkpoint, plan) = plan_for(&args.recipe, recipe, args.output.as_deref())?;
    foresee(&plan, &checkpoint, args.finish)?;
    if let Some(output) = &args.output {
        check_name(output, OutputKind::Gguf, "--format")?;
        check_runs([output.as_path()], &args.recipe.typed, args.finish)?;
        Output::check(&plan, &args.recipe.model, output, args.finish.overwrite)?;
    }
    if args.dry_run {
        gate::foresee(args, &checkpoint)?;
    }
    match &args.output {
        _ if args.dry_run => show(
            &View { plan: &plan, codes: None, all: false, threads: model::threads(&args.run) },
            &checkpoint,
            printer,
        ),
        Some(target) => {
            tell_of_name(target, printer);
            let cancelled = interrupt::flag();
            let claim = claim(target, &args.recipe.typed, args.finish)?;
            let work = Work { args, target, checkpoint: &checkpoint, cancelled: &cancelled };
            if !args.finish.no_verify || plan.recipe.needs_importance() {
                finite::check_vectors(&checkpoint)?;
            }
            let gate = Gate::open(args, &checkpoint, target, plan.recipe.needs_importance(), printer)?;
            let plan = if plan.recipe.needs_importance() { work.measured(plan, printer)? } else { plan };
            plan.notices.iter().for_each(|notice| printer.note(notice));
            let source = &args.recipe.model;
            let delivery = Delivery { plan: &plan, checkpoint: &checkpoint, source, finish: args.finish };
            let judge = |made: &Path| gate.as_ref().map_or(Ok(()), |gate| gate.judge(made, printer));
            let (output, done) = super::work_if(&delivery, claim, &args.run, &cancelled, printer, judge)?;
            clear_away(target)?;
            let measured = gate.and_then(|gate| gate.measured());
            let output = output.acknowledge()?;
            conclude(&Report { plan, output, done, measured, time: begun.elapsed() }, printer)
        }
        None => {
            Err(Failure::new(Kind::Usage, "no output file is given").with_hint(Some("give one with -o".to_owned())))
        }
    }
}

/// What a run needs besides its plan.
struct Work<'a> {
    args: &'a QuantizeArgs,
    target: &'a Path,
    checkpoint: &'a Checkpoint,
    cancelled: &'a AtomicBool,
}

impl Work<'_> {
    /// The plan with the importance of inputs, measured on the data.
    fn measured(&self, plan: GgufPlan, printer: &Printer) -> Result<GgufPlan, Failure> {
        let data = &self.args.recipe.calibration;
        let decoder = Decoder::open(self.checkpoint)?;
        let calibration = Calibration {
            checkpoint: self.checkpoint,
            model: &self.args.recipe.model,
            target: self.target,
            args: data,
            run: &self.args.run,
            cancelled: self.cancelled,
        };
        let loaded = calibration.load(&decoder, 0, printer)?;
        let sequences = loaded.sequences();
        let progress = Progress::new(printer, Unit::Tokens);
        let (watch, ops, memory) = (progress.watch(), data.precision.ops(), data.max_memory.0);
        let key = format!("{} {}", plan.fingerprint, loaded.key(data.precision.name()));
        if State::is_of_another(self.target, &key) {
            return Err(OutputError::other_run(self.target).into());
        }
        let keep = Keep { target: self.target, key: &key, every: KEPT_EVERY };
        let work = || imatrix::collect(&plan, &decoder, &ops, sequences, memory, keep, self.cancelled, watch);
        let sums = model::pool(&self.args.run)?.install(work)?;
        drop(progress);
        let names = data.calib.iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        let provenance = Provenance {
            file: None,
            datasets: names.collect(),
            chunks: sequences.len() as u32,
            chunk_size: sequences.iter().map(Vec::len).max().unwrap_or(0) as u32,
        };
        if let Some(path) = &self.args.recipe.gguf.save_imatrix {
            // Hours may have passed since the first look.
            refuse_existing(path, self.args.finish.overwrite)?;
            imatrix::write(path, &sums, &provenance)?;
        }
        let importance = Arc::new(Importance::of_sums(&sums, provenance));
        let recipe = plan.recipe.with_importance(importance);
        Ok(GgufPlan::new(self.checkpoint, recipe, &file_name(Some(self.target)))?)
    }
}

/// What is said at the end.
struct Report {
    plan: GgufPlan,
    output: PathBuf,
    done: Done,
    /// How far the file is from its source, where that was asked for.
    measured: Option<Value>,
    time: Duration,
}

/// The path on stdout, or one object; the summary on stderr.
fn conclude(report: &Report, printer: &Printer) -> Result<(), Failure> {
    printer.summary(&printable(&report.text()));
    match printer.is_json() {
        true => printer.json("quantize", &report.json()),
        false => printer.data(&report.output.display().to_string()),
    }
}

impl Report {
    fn text(&self) -> String {
        let (title, tensors) = counts::tensors(&self.plan);
        let lines = [
            (title, format!("{tensors} ({} was asked for)", self.plan.recipe.mix())),
            counts::sizes(self.plan.source_bytes, self.plan.layout.file_len()),
            counts::bits(self.plan.bits_per_weight(), "tensors"),
            ("time", size::duration(self.time)),
        ];
        let lines = lines.into_iter().chain(self.measured.as_ref().map(gate::line));
        loading::summary(lines, &self.plan.loaders(), &self.output)
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "output": self.output.display().to_string(),
            "format": "gguf",
            "recipe": self.plan.recipe,
            "family": self.plan.family,
            "architecture": self.plan.architecture,
            "quantized_layers": self.plan.quantized(),
            "kept_tensors": self.plan.tensors.len() - self.plan.quantized(),
            "source_bytes": self.plan.source_bytes,
            "output_bytes": self.plan.layout.file_len(),
            "bits_per_weight": self.plan.bits_per_weight(),
            "seconds": self.time.as_secs_f64(),
            "jobs": self.done.jobs,
            "resumed_jobs": self.done.resumed,
            "loading": loading::json(&self.plan.loaders(), &self.output),
            "notices": self.plan.notices,
            "evaluation": self.measured,
        })
    }
}
