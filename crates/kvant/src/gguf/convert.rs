//! Converts the codes of a quantized checkpoint to a file for llama.cpp.

use super::{check_output_name, file_name, in_parts, open, tell, work};
use crate::delivery::{Delivery, check_output, claim, preflight, refuse_measured_change};
use crate::error::Error;
use crate::events::Reporter;
use crate::job::Conversion;
use crate::json::path as path_json;
use crate::loading;
use crate::paths::tell_of_name;
use kvant_checkpoint::conversion::LayerError;
use kvant_checkpoint::engine::Done;
use kvant_checkpoint::gguf::{Accepted, GgufPlan, measure};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Writes a GGUF file from existing codes, or checks that this is possible if nothing is to be written.
///
/// # Errors
/// Codes that no type holds, before anything is written; then errors of the system or the weights.
pub fn run(request: &Conversion, reporter: &Reporter<'_>, writes: bool) -> Result<GgufConversion, Error> {
    let (sinks, limits) = (&request.sinks, &request.limits);
    request.refuse_of_checkpoints()?;
    request.refuse_weights_only()?;
    let max_size = sinks.max_shard_size.map(|size| size.0);
    sinks.output.as_deref().map_or(Ok(()), |output| check_output_name(output, max_size, "‹to›"))?;
    let begun = Instant::now();
    let checkpoint = open(&request.source.model)?;
    let accepted = Accepted::requantizing(request.requantize);
    let name = file_name(sinks.output.as_deref());
    let plan = in_parts(GgufPlan::convert(&checkpoint, accepted, &name)?, &name, max_size)?;
    preflight(&plan, &checkpoint, sinks.commit)?;
    check_output(&plan, &request.source.model, sinks)?;
    tell(&plan, reporter);
    let planned = GgufConversion {
        output: None,
        intended: sinks.output.clone(),
        done: Done::default(),
        errors: Vec::new(),
        time: None,
        plan,
    };
    let Some(target) = sinks.output.as_deref().filter(|_| writes) else { return Ok(planned) };
    if max_size.is_none() {
        tell_of_name(target, reporter);
    }
    reporter.started();
    let claim = claim(target, &sinks.settings, sinks.commit)?;
    let (plan, source) = (&planned.plan, request.source.model.as_path());
    let delivery = Delivery { plan, checkpoint: &checkpoint, source, commit: sinks.commit };
    let (output, done) = work(&delivery, claim, limits, reporter)?;
    let output = plan.model_in(&output.commit()?);
    let errors = match request.requantize {
        true => {
            let errors = limits.pool()?.install(|| measure(plan, &checkpoint, &output))?;
            refuse_measured_change(&checkpoint, &output)?;
            errors
        }
        false => Vec::new(),
    };
    Ok(GgufConversion { output: Some(output), done, errors, time: Some(begun.elapsed()), ..planned })
}

/// The result of converting to a GGUF file, real or planned.
pub struct GgufConversion {
    /// The plan.
    pub plan: GgufPlan,
    /// The file, of several the first; `None` where nothing was written.
    pub output: Option<PathBuf>,
    /// The requested path.
    pub intended: Option<PathBuf>,
    /// The number of jobs, and those done by an interrupted run.
    pub done: Done,
    /// The errors of tensors that were requantized.
    pub errors: Vec<LayerError>,
    /// The duration of the run; `None` if nothing was written.
    pub time: Option<Duration>,
}

impl GgufConversion {
    /// The number of tensors that keep their codes.
    pub fn kept_codes(&self) -> usize {
        self.plan.tensors.iter().filter(|tensor| tensor.keeps_codes()).count()
    }

    /// The number of requantized tensors.
    pub fn requantized(&self) -> usize {
        self.plan.quantized() - self.kept_codes()
    }

    /// The path of the output.
    pub fn place(&self) -> &Path {
        self.output.as_deref().or(self.intended.as_deref()).unwrap_or_else(|| Path::new("OUT.gguf"))
    }

    pub(crate) fn to_json(&self) -> Value {
        let (taken, anew) = (self.kept_codes(), self.requantized());
        json!({
            "output": self.output.as_ref().map(|path| path_json(path)),
            "format": "gguf",
            "architecture": self.plan.architecture,
            "layers": taken,
            "layers_quantized_anew": anew,
            "errors": self.errors,
            "kept_tensors": self.plan.tensors.len() - taken - anew,
            "source_bytes": self.plan.source_bytes,
            "output_bytes": self.plan.layout.total_size(),
            "seconds": self.time.map(|time| time.as_secs_f64()),
            "jobs": self.done.jobs,
            "resumed_jobs": self.done.resumed,
            "loading": loading::json(&self.plan.loaders(), self.place()),
            "notices": self.plan.remarks().collect::<Vec<_>>(),
        })
    }
}
