//! `kvant quantize`: plans, checks, works, and says how to load the result.

use super::plan::{View, show};
use crate::args::QuantizeArgs;
use crate::calibration::{Calibration, clear_away};
use crate::escape::printable;
use crate::failure::{Failure, Kind};
use crate::printer::Printer;
use crate::progress::{Progress, Unit};
use crate::{interrupt, loading, model, size};
use kvant_container::{Checkpoint, Durability};
use kvant_llm::engine::{self, Begun, Done, EngineError, Output};
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
    let begun = Instant::now();
    let (checkpoint, plan) = model::plan(&args.recipe)?;
    if let Some(output) = &args.output {
        Output::check(&plan, &args.recipe.model, output, args.overwrite)?;
    }
    match &args.output {
        _ if args.dry_run => show(&plan, &checkpoint, &View::usual(&args.run), printer),
        Some(target) => {
            plan.notices.iter().for_each(|notice| printer.note(notice));
            let cancelled = interrupt::flag();
            let plan = calibrated(args, target, &checkpoint, plan, &cancelled, printer)?;
            let (output, done) = work(args, target, &checkpoint, &plan, &cancelled, printer)?;
            conclude(&Report { plan: &plan, output, done, time: begun.elapsed() }, printer)
        }
        None => {
            Err(Failure::new(Kind::Usage, "no output directory is given")
                .with_hint(Some("give one with -o".to_owned())))
        }
    }
}

/// The plan with what calibration data give it, where it needs any.
fn calibrated(
    args: &QuantizeArgs,
    target: &Path,
    checkpoint: &Checkpoint,
    plan: Plan,
    cancelled: &AtomicBool,
    printer: &Printer,
) -> Result<Plan, Failure> {
    let data = &args.recipe.calibration;
    if !plan.needs_calibration() {
        if !data.calib.is_empty() {
            printer.note("nothing in this recipe needs calibration data: they are not read");
        }
        return Ok(plan);
    }
    let (model, run) = (args.recipe.model.as_path(), &args.run);
    Calibration { checkpoint, model, target, args: data, run, cancelled }.complete(plan, printer)
}

fn work(
    args: &QuantizeArgs,
    target: &Path,
    checkpoint: &Checkpoint,
    plan: &Plan,
    cancelled: &AtomicBool,
    printer: &Printer,
) -> Result<(PathBuf, Done), Failure> {
    let threads = model::threads(&args.run);
    printer.detail(&format!("{} layers in {} units of work, {threads} threads", plan.layers.len(), plan.jobs().len()));
    let output = match Output::begin(plan, &args.recipe.model, target, args.overwrite)? {
        Begun::Working(output) => output,
        Begun::Finished(path) => {
            clear_away(target)?;
            let jobs = plan.jobs().len();
            return Ok((path, Done { jobs, resumed: jobs }));
        }
    };
    let progress = Progress::new(printer, Unit::Bytes);
    let run = engine::run(plan, checkpoint, &output, threads, cancelled, &progress);
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
    let durability = if args.sync { Durability::Disk } else { Durability::Process };
    let path = output.finish(plan, checkpoint, durability)?;
    clear_away(target)?;
    Ok((path, done))
}

/// What is said at the end.
struct Report<'a> {
    plan: &'a Plan,
    output: PathBuf,
    done: Done,
    time: Duration,
}

/// The path on stdout, or one object; the summary on stderr.
fn conclude(report: &Report<'_>, printer: &Printer) -> Result<(), Failure> {
    printer.summary(&printable(&report.text()));
    if printer.is_json() { printer.json(&report.json()) } else { printer.data(&report.output.display().to_string()) }
}

impl Report<'_> {
    fn text(&self) -> String {
        let (before, after) = self.sizes();
        let lines = [
            ("layers", format!("{} to {}", self.plan.layers.len(), self.plan.recipe.scheme_name())),
            ("size", format!("{} to {}, {}", size::bytes(before), size::bytes(after), size::ratio(before, after))),
            ("bits per weight", format!("{:.2} in quantized layers, scales included", self.plan.bits_per_weight())),
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
            "output": self.output.display().to_string(),
            "export": self.plan.export.row().name,
            "recipe": self.plan.recipe,
            "architecture": self.plan.architecture,
            "family": self.plan.family,
            "quantized_layers": self.plan.layers.len(),
            "kept_tensors": self.plan.kept.len(),
            "source_bytes": before,
            "output_bytes": after,
            "bits_per_weight": self.plan.bits_per_weight(),
            "seconds": self.time.as_secs_f64(),
            "jobs": self.done.jobs,
            "resumed_jobs": self.done.resumed,
            "loading": self.loading().into_iter().map(line).collect::<Vec<_>>(),
            "notices": self.plan.notices,
            "calibration": self.plan.record,
        })
    }

    fn sizes(&self) -> (u64, u64) {
        (self.plan.source_bytes, self.plan.layout.total_size())
    }

    fn loading(&self) -> Vec<(&'static str, Option<String>)> {
        loading::lines(&self.plan.loaders(), &self.output)
    }
}
