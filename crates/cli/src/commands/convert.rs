//! `kvant convert`: plans, checks, works, and says what became of the codes.

use crate::args::{ConvertArgs, ConvertTo, FinishArgs, RunArgs};
use crate::delivery::{Delivery, check_runs, claim, foresee};
use crate::escape::printable;
use crate::failure::{Failure, Kind};
use crate::outputs::{OutputKind, check_name};
use crate::printer::Printer;
use crate::progress::{Progress, Unit};
use crate::{counts, gguf, interrupt, loading, model, onnx, size};
use kvant_container::Checkpoint;
use kvant_llm::conversion::{Conversion, LayerError, Target, measure};
use kvant_llm::engine::{self, Claim, Done, Options, Output, Placed};
use kvant_llm::plan::Plan;
use kvant_llm::recipe::MAX_SHARD_SIZE;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Converts a model.
///
/// # Errors
/// What the target does not hold, before anything is written; then what the system or the weights say.
pub fn run(args: &ConvertArgs, printer: &Printer) -> Result<(), Failure> {
    refuse_graph(&args.model)?;
    let target = match args.to {
        ConvertTo::Checkpoint(target) => target,
        ConvertTo::Onnx => return onnx::decoder::run(args, printer),
        ConvertTo::Gguf => return gguf::convert::run(args, printer),
    };
    args.output.as_deref().map_or(Ok(()), |output| check_name(output, OutputKind::Directory, "--to"))?;
    let begun = Instant::now();
    if !args.lora.is_empty() && !matches!(target, Target::Float(_)) {
        let failure = Failure::new(Kind::Usage, "--lora applies only to --to float");
        let hint = "an adapter changes values, so that codes no longer stand for them: quantize the model with --lora";
        return Err(failure.with_hint(Some(hint.to_owned())));
    }
    let checkpoint = model::open_with(&args.model, &args.lora)?;
    let plan = Plan::convert(&checkpoint, &conversion(args, target)?)?;
    foresee(&plan, &checkpoint, args.finish)?;
    if let Some(output) = &args.output {
        check_runs([output.as_path()], &args.typed, args.finish)?;
        Output::check(&plan, &args.model, output, args.finish.overwrite)?;
    }
    plan.notices.iter().for_each(|notice| printer.note(notice));
    let report =
        Report { args, target, plan: &plan, output: None, done: Done::default(), errors: Vec::new(), time: None };
    let Some(target) = args.output.as_deref().filter(|_| !args.dry_run) else {
        return report.show(printer);
    };
    let cancelled = interrupt::flag();
    let work = Work {
        checkpoint: &checkpoint,
        source: &args.model,
        threads: model::threads(&args.run),
        finish: args.finish,
        cancelled: &cancelled,
    };
    let claim = claim(target, &args.typed, args.finish)?;
    let (output, done) = work.carry_out(&plan, claim, printer)?;
    let output = output.acknowledge()?;
    let errors = match args.requantize {
        true => {
            let made = model::open(&output)?;
            model::pool(&args.run)?.install(|| measure(&plan, &checkpoint, &made))?
        }
        false => Vec::new(),
    };
    Report { output: Some(output), done, errors, time: Some(begun.elapsed()), ..report }.show(printer)
}

/// A graph has no other layout to go to.
fn refuse_graph(model: &Path) -> Result<(), Failure> {
    if !onnx::is_graph(model) {
        return Ok(());
    }
    let message = format!("{} is an ONNX graph, which is not converted", printable(&model.to_string_lossy()));
    let hint = "quantize it with `kvant quantize`; convert the checkpoint that it was made of";
    Err(Failure::new(Kind::Unsupported, message).with_hint(Some(hint.to_owned())))
}

fn conversion(args: &ConvertArgs, target: Target) -> Result<Conversion, Failure> {
    refuse_weights_only(args)?;
    let target = match (target, args.dtype) {
        (Target::Float(_), dtype) => Target::Float(dtype),
        (target, None) => target,
        (_, Some(_)) => {
            let failure = Failure::new(Kind::Usage, "--dtype applies only to --to float");
            return Err(failure.with_hint(Some("leave it out, or convert --to float".to_owned())));
        }
    };
    let max_shard_size = args.max_shard_size.unwrap_or(MAX_SHARD_SIZE).0;
    Ok(Conversion { target, requantize: args.requantize, max_shard_size })
}

/// Refuses the option that only graphs have.
///
/// # Errors
/// Where it is given.
pub fn refuse_weights_only(args: &ConvertArgs) -> Result<(), Failure> {
    if !args.weights_only {
        return Ok(());
    }
    let failure = Failure::new(Kind::Usage, "--weights-only applies only to --to onnx");
    Err(failure.with_hint(Some("leave it out: other formats keep what the source says of activations".to_owned())))
}

/// Refuses options that mean nothing where the output is one file.
///
/// # Errors
/// Names the option.
pub fn refuse_for_one_file(args: &ConvertArgs) -> Result<(), Failure> {
    let given = [
        (args.dtype.is_some(), "--dtype", "--to float"),
        (!args.lora.is_empty(), "--lora", "--to float"),
        (args.max_shard_size.is_some(), "--max-shard-size", "checkpoints"),
    ];
    let Some((_, option, meant)) = given.into_iter().find(|(given, ..)| *given) else { return Ok(()) };
    let failure = Failure::new(Kind::Usage, format!("{option} applies only to {meant}"));
    Err(failure.with_hint(Some(
        "leave it out: a graph or a GGUF file is written as one, in the types of the source".to_owned(),
    )))
}

/// A conversion that another command needs.
pub struct Request<'a> {
    /// What to.
    pub target: Target,
    /// The most bytes of a file.
    pub max_shard_size: u64,
    /// How to run it.
    pub run: &'a RunArgs,
    /// How it gets its name.
    pub finish: FinishArgs,
    /// The options of the command.
    pub options: &'a Options,
    /// Set when the user wants it to stop.
    pub cancelled: &'a AtomicBool,
}

/// Converts a checkpoint that was just made. What the target does not hold exactly is quantized to what is nearest, and the user
/// is told.
///
/// # Errors
/// As [`run`].
pub fn make(source: &Path, target: &Path, request: &Request<'_>, printer: &Printer) -> Result<(Placed, Plan), Failure> {
    let checkpoint = model::open(source)?;
    let conversion = Conversion { target: request.target, requantize: true, max_shard_size: request.max_shard_size };
    let plan = Plan::convert(&checkpoint, &conversion)?;
    plan.notices.iter().for_each(|notice| printer.note(notice));
    let Request { run, finish, options, cancelled, .. } = *request;
    let claim = claim(target, options, finish)?;
    let work = Work { checkpoint: &checkpoint, source, threads: model::threads(run), finish, cancelled };
    let (placed, _) = work.carry_out(&plan, claim, printer)?;
    if plan.layers.iter().any(|layer| !layer.is_recoded()) {
        let made = model::open(placed.path())?;
        let errors = model::pool(run)?.install(|| measure(&plan, &checkpoint, &made))?;
        if let Some(worst) = worst(&errors) {
            let shown = target.display();
            printer.note(&format!("{shown}: values were quantized once more for it: {}", said(worst)));
        }
    }
    Ok((placed, plan))
}

/// The layer with the largest relative error, where there is any error.
pub fn worst(errors: &[LayerError]) -> Option<&LayerError> {
    errors.iter().max_by(|a, b| a.relative.total_cmp(&b.relative)).filter(|error| error.relative > 0.0)
}

/// It in words.
pub fn said(worst: &LayerError) -> String {
    format!("relative RMS {:.3e}, at most {:.3e} ({})", worst.relative, worst.max, worst.layer)
}

/// What a run needs besides its plan.
struct Work<'a> {
    checkpoint: &'a Checkpoint,
    source: &'a Path,
    threads: usize,
    finish: FinishArgs,
    cancelled: &'a AtomicBool,
}

impl Work<'_> {
    fn carry_out(&self, plan: &Plan, claim: Claim, printer: &Printer) -> Result<(Placed, Done), Failure> {
        let Work { checkpoint, source, finish, .. } = *self;
        Delivery { plan, checkpoint, source, finish }.make(claim, plan.jobs().len(), |output| {
            let progress = Progress::new(printer, Unit::Bytes);
            engine::run(plan, checkpoint, output, self.threads, self.cancelled, &progress)
        })
    }
}

/// What is said at the end, or of what would be done.
struct Report<'a> {
    args: &'a ConvertArgs,
    target: Target,
    plan: &'a Plan,
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

    /// Layers whose codes are taken over, and those that are quantized anew.
    fn counts(&self) -> (usize, usize) {
        let taken = self.plan.layers.iter().filter(|layer| layer.is_recoded()).count();
        (taken, self.plan.layers.len() - taken)
    }

    fn text(&self) -> String {
        let (taken, anew) = self.counts();
        let mut lines = vec![("to", self.target.to_string())];
        if taken > 0 {
            lines.push(("layers", format!("{taken} with the codes that they have")));
        }
        if anew > 0 {
            lines.push(("quantized anew", counts::number(anew, "layer")));
        }
        lines.extend(worst(&self.errors).map(|worst| ("largest error", said(worst))));
        lines.push(counts::sizes(self.plan.source_bytes, self.plan.layout.total_size()));
        lines.extend(self.time.map(|time| ("time", size::duration(time))));
        loading::summary(lines, &self.plan.loaders(), self.place())
    }

    fn json(&self) -> serde_json::Value {
        let (taken, anew) = self.counts();
        json!({
            "output": self.output.as_ref().map(|path| path.display().to_string()),
            "format": self.target.to_string(),
            "architecture": self.plan.architecture,
            "layers": taken,
            "layers_quantized_anew": anew,
            "errors": self.errors,
            "kept_tensors": self.plan.kept.len(),
            "source_bytes": self.plan.source_bytes,
            "output_bytes": self.plan.layout.total_size(),
            "seconds": self.time.map(|time| time.as_secs_f64()),
            "jobs": self.done.jobs,
            "resumed_jobs": self.done.resumed,
            "loading": loading::json(&self.plan.loaders(), self.place()),
            "notices": self.plan.notices,
        })
    }

    /// Where the output is, or would be.
    fn place(&self) -> &Path {
        self.output.as_deref().or(self.args.output.as_deref()).unwrap_or_else(|| Path::new("OUT"))
    }
}
