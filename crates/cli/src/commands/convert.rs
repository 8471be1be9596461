//! `kvant convert`: plans, checks, works, and says what became of the codes.

use crate::args::{ConvertArgs, ConvertTo};
use crate::escape::printable;
use crate::failure::{Failure, Kind};
use crate::printer::Printer;
use crate::progress::{Progress, Unit};
use crate::{gguf, interrupt, loading, model, onnx, size};
use kvant_container::{Checkpoint, Durability};
use kvant_llm::conversion::{Conversion, LayerError, Target, measure};
use kvant_llm::engine::{self, Begun, Done, EngineError, Output};
use kvant_llm::plan::Plan;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Converts a model.
///
/// # Errors
/// What the target does not hold, before anything is written; then what the system or the weights say.
pub fn run(args: &ConvertArgs, printer: &Printer) -> Result<(), Failure> {
    let target = match args.to {
        ConvertTo::Checkpoint(target) => target,
        ConvertTo::Onnx => return onnx::decoder::run(args, printer),
        ConvertTo::Gguf => return gguf::convert::run(args, printer),
    };
    let begun = Instant::now();
    let checkpoint = model::open(&args.model)?;
    let plan = Plan::convert(&checkpoint, &conversion(args, target)?)?;
    if let Some(output) = &args.output {
        Output::check(&plan, &args.model, output, args.overwrite)?;
    }
    plan.notices.iter().for_each(|notice| printer.note(notice));
    let report =
        Report { args, target, plan: &plan, output: None, done: Done::default(), errors: Vec::new(), time: None };
    let Some(target) = args.output.as_deref().filter(|_| !args.dry_run) else {
        return report.show(printer);
    };
    let cancelled = interrupt::flag();
    let manner = Manner {
        threads: model::threads(&args.run),
        overwrite: args.overwrite,
        sync: args.sync,
        no_verify: args.no_verify,
        cancelled: &cancelled,
    };
    let (output, done) = work(manner, (&args.model, target), &checkpoint, &plan, printer)?;
    let errors = match args.requantize {
        true => {
            let made = model::open(&output)?;
            model::pool(&args.run)?.install(|| measure(&plan, &checkpoint, &made))?
        }
        false => Vec::new(),
    };
    Report { output: Some(output), done, errors, time: Some(begun.elapsed()), ..report }.show(printer)
}

fn conversion(args: &ConvertArgs, target: Target) -> Result<Conversion, Failure> {
    let target = match (target, args.dtype) {
        (Target::Float(_), dtype) => Target::Float(dtype),
        (target, None) => target,
        (_, Some(_)) => {
            let failure = Failure::new(Kind::Usage, "--dtype has a meaning for --to float only");
            return Err(failure.with_hint(Some("leave it out, or convert --to float".to_owned())));
        }
    };
    Ok(Conversion { target, requantize: args.requantize, max_shard_size: args.max_shard_size.0 })
}

/// A conversion that another command needs.
pub struct Request<'a> {
    /// What to.
    pub target: Target,
    /// The most bytes of a file.
    pub max_shard_size: Option<u64>,
    /// How it is run.
    pub manner: Manner<'a>,
}

/// How a conversion is run.
#[derive(Clone, Copy)]
pub struct Manner<'a> {
    /// Threads.
    pub threads: usize,
    /// Whether what is there is replaced.
    pub overwrite: bool,
    /// Whether to wait for the disk.
    pub sync: bool,
    /// Whether the output gets its name without being verified.
    pub no_verify: bool,
    /// Set when the user wants it to stop.
    pub cancelled: &'a AtomicBool,
}

/// Converts a checkpoint that was just made. Scales that are not exact in the target are rounded, and the user is told.
///
/// # Errors
/// As [`run`].
pub fn make(source: &Path, target: &Path, request: &Request<'_>, printer: &Printer) -> Result<PathBuf, Failure> {
    let checkpoint = model::open(source)?;
    let max_shard_size = request.max_shard_size.unwrap_or(MAX_SHARD_SIZE);
    let conversion = Conversion { target: request.target, requantize: true, max_shard_size };
    let plan = Plan::convert(&checkpoint, &conversion)?;
    plan.notices.iter().for_each(|notice| printer.note(notice));
    Ok(work(request.manner, (source, target), &checkpoint, &plan, printer)?.0)
}

/// What `--max-shard-size` is where it is not given.
const MAX_SHARD_SIZE: u64 = 5_000_000_000;

/// Carries out the plan.
fn work(
    manner: Manner<'_>,
    (source, target): (&Path, &Path),
    checkpoint: &Checkpoint,
    plan: &Plan,
    printer: &Printer,
) -> Result<(PathBuf, Done), Failure> {
    let output = match Output::begin(plan, source, target, manner.overwrite)? {
        Begun::Working(output) => output,
        Begun::Finished(path) => {
            let jobs = plan.jobs().len();
            return Ok((path, Done { jobs, resumed: jobs }));
        }
    };
    let progress = Progress::new(printer, Unit::Bytes);
    let run = engine::run(plan, checkpoint, &output, manner.threads, manner.cancelled, &progress);
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
    let durability = if manner.sync { Durability::Disk } else { Durability::Process };
    let accept = |made: &Path| if manner.no_verify { Ok(()) } else { engine::accept(plan, made) };
    Ok((output.finish_if(plan, checkpoint, durability, accept)?, done))
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
            (_, true) => printer.json(&self.json()),
            (Some(output), false) => printer.data(&output.display().to_string()),
            (None, false) => Ok(()),
        }
    }

    /// Layers whose codes are taken over, and those that are quantized anew.
    fn counts(&self) -> (usize, usize) {
        let taken = self.plan.layers.iter().filter(|layer| layer.is_recoded()).count();
        (taken, self.plan.layers.len() - taken)
    }

    /// The largest relative error of a layer.
    fn worst(&self) -> Option<&LayerError> {
        self.errors.iter().max_by(|a, b| a.relative.total_cmp(&b.relative)).filter(|error| error.relative > 0.0)
    }

    fn text(&self) -> String {
        let (taken, anew) = self.counts();
        let (before, after) = (self.plan.source_bytes, self.plan.layout.total_size());
        let mut lines = vec![("to", self.target.to_string())];
        if taken > 0 {
            lines.push(("layers", format!("{taken} with the codes that they have")));
        }
        if anew > 0 {
            lines.push(("quantized anew", format!("{anew} layers")));
        }
        if let Some(worst) = self.worst() {
            let text = format!("relative RMS {:.3e}, at most {:.3e} ({})", worst.relative, worst.max, worst.layer);
            lines.push(("largest error", text));
        }
        lines.push(("size", format!("{} to {}", size::bytes(before), size::bytes(after))));
        lines.extend(self.time.map(|time| ("time", size::duration(time))));
        let loaders = self.loading().into_iter().enumerate();
        let loading = loaders.map(|(i, (loader, line))| {
            let line = line.map(|line| format!(": {line}")).unwrap_or_default();
            (if i == 0 { "load it with" } else { "" }, format!("{loader}{line}"))
        });
        let all = lines.into_iter().chain(loading).map(|(name, value)| format!("{name:<15}  {value}"));
        all.collect::<Vec<_>>().join("\n")
    }

    fn json(&self) -> serde_json::Value {
        let (taken, anew) = self.counts();
        let line = |(loader, line): (&str, Option<String>)| json!({ "loader": loader, "line": line });
        json!({
            "output": self.output.as_ref().map(|path| path.display().to_string()),
            "target": self.target.to_string(),
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
            "loading": self.loading().into_iter().map(line).collect::<Vec<_>>(),
            "notices": self.plan.notices,
        })
    }

    fn loading(&self) -> Vec<(&'static str, Option<String>)> {
        let path = self.output.as_deref().or(self.args.output.as_deref()).unwrap_or_else(|| Path::new("OUT"));
        loading::lines(&self.plan.loaders(), path)
    }
}
