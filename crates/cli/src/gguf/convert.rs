//! `kvant convert --to gguf`: the codes of a quantized checkpoint in a file for llama.cpp.

use super::{file_name, open, work};
use crate::args::ConvertArgs;
use crate::commands::convert::{refuse_for_one_file, refuse_weights_only, said, worst};
use crate::delivery::{Delivery, check_runs, claim, foresee};
use crate::escape::printable;
use crate::failure::Failure;
use crate::outputs::{OutputKind, check_name, tell_of_name};
use crate::printer::Printer;
use crate::{counts, interrupt, loading, model, size};
use kvant_llm::conversion::LayerError;
use kvant_llm::engine::{Done, Output};
use kvant_llm::gguf::{Accepted, GgufPlan, measure};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Writes a GGUF file of codes that are there already.
///
/// # Errors
/// What no type holds, before anything is written; then what the system or the weights say.
pub fn run(args: &ConvertArgs, printer: &Printer) -> Result<(), Failure> {
    refuse_for_one_file(args)?;
    refuse_weights_only(args)?;
    args.output.as_deref().map_or(Ok(()), |output| check_name(output, OutputKind::Gguf, "--to"))?;
    let begun = Instant::now();
    let checkpoint = open(&args.model)?;
    let plan =
        GgufPlan::convert(&checkpoint, Accepted::requantizing(args.requantize), &file_name(args.output.as_deref()))?;
    foresee(&plan, &checkpoint, args.finish)?;
    if let Some(output) = &args.output {
        check_runs([output.as_path()], &args.typed, args.finish)?;
        Output::check(&plan, &args.model, output, args.finish.overwrite)?;
    }
    plan.notices.iter().for_each(|notice| printer.note(notice));
    let report = Report { args, plan: &plan, output: None, done: Done::default(), errors: Vec::new(), time: None };
    let Some(target) = args.output.as_deref().filter(|_| !args.dry_run) else {
        return report.show(printer);
    };
    tell_of_name(target, printer);
    let claim = claim(target, &args.typed, args.finish)?;
    let delivery = Delivery { plan: &plan, checkpoint: &checkpoint, source: &args.model, finish: args.finish };
    let (output, done) = work(&delivery, claim, &args.run, &interrupt::flag(), printer)?;
    let output = output.acknowledge()?;
    let errors = match args.requantize {
        true => model::pool(&args.run)?.install(|| measure(&plan, &checkpoint, &output))?,
        false => Vec::new(),
    };
    Report { output: Some(output), done, errors, time: Some(begun.elapsed()), ..report }.show(printer)
}

/// What is said at the end, or of what would be done.
struct Report<'a> {
    args: &'a ConvertArgs,
    plan: &'a GgufPlan,
    output: Option<PathBuf>,
    done: Done,
    errors: Vec<LayerError>,
    time: Option<Duration>,
}

impl Report<'_> {
    fn show(&self, printer: &Printer) -> Result<(), Failure> {
        printer.summary(&printable(&self.text()));
        match (&self.output, printer.is_json()) {
            (_, true) => printer.json("convert", &self.json()),
            (Some(output), false) => printer.data(&output.display().to_string()),
            (None, false) => Ok(()),
        }
    }

    /// Tensors whose codes are taken over, and those that are quantized anew.
    fn counts(&self) -> (usize, usize) {
        let taken = self.plan.tensors.iter().filter(|tensor| tensor.keeps_codes()).count();
        (taken, self.plan.quantized() - taken)
    }

    fn text(&self) -> String {
        let (taken, anew) = self.counts();
        let mut lines = vec![("to", "gguf".to_owned()), ("tensors", format!("{taken} with the codes that they have"))];
        if anew > 0 {
            lines.push(("quantized anew", counts::number(anew, "tensor")));
        }
        lines.extend(worst(&self.errors).map(|worst| ("largest error", said(worst))));
        lines.push(counts::sizes(self.plan.source_bytes, self.plan.layout.file_len()));
        lines.extend(self.time.map(|time| ("time", size::duration(time))));
        loading::summary(lines, &self.plan.loaders(), self.place())
    }

    fn json(&self) -> serde_json::Value {
        let (taken, anew) = self.counts();
        json!({
            "output": self.output.as_ref().map(|path| path.display().to_string()),
            "format": "gguf",
            "architecture": self.plan.architecture,
            "layers": taken,
            "layers_quantized_anew": anew,
            "errors": self.errors,
            "kept_tensors": self.plan.tensors.len() - taken - anew,
            "source_bytes": self.plan.source_bytes,
            "output_bytes": self.plan.layout.file_len(),
            "seconds": self.time.map(|time| time.as_secs_f64()),
            "jobs": self.done.jobs,
            "resumed_jobs": self.done.resumed,
            "loading": loading::json(&self.plan.loaders(), self.place()),
            "notices": self.plan.notices,
        })
    }

    /// Where the output is, or would be.
    fn place(&self) -> &Path {
        self.output.as_deref().or(self.args.output.as_deref()).unwrap_or_else(|| Path::new("OUT.gguf"))
    }
}
