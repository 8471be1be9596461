//! Quantizes a model to a GGUF file: plans, checks, measures the importance of inputs where that is asked, and works.

use super::{check_data, check_output_name, check_room, plan_for, planned, tell};
use crate::calibration::{Calibration, clear_away};
use crate::delivery::{Delivery, check_output, claim, preflight};
use crate::error::Error;
use crate::events::{Reporter, Stage, Unit};
use crate::job::Job;
use crate::json::path as path_json;
use crate::loading;
use crate::paths::{no_file, refuse_existing, tell_of_name};
use crate::quality::Gate;
use kvant_checkpoint::blockwise::State;
use kvant_checkpoint::engine::{Done, OutputError};
use kvant_checkpoint::finite;
use kvant_checkpoint::gguf::imatrix::{self, Importance, InputSums, Keep, Provenance};
use kvant_checkpoint::gguf::{GgufPlan, GgufRecipe};
use kvant_container::Checkpoint;
use kvant_forward::forward::Decoder;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The measurement time that a killed run may lose, besides one block.
const KEPT_EVERY: Duration = Duration::from_secs(20);

/// Writes a GGUF file.
///
/// # Errors
/// Whatever can be refused, before anything is written; then what the system or the weights say.
pub fn run(job: &Job, recipe: GgufRecipe, reporter: &Reporter<'_>) -> Result<Box<GgufReport>, Error> {
    let begun = Instant::now();
    check_data(job, &recipe)?;
    let (checkpoint, plan) = plan_for(job, recipe)?;
    let commit = job.sinks.commit;
    preflight(&plan, &checkpoint, commit)?;
    let target = job.sinks.output.as_deref().ok_or_else(no_file)?;
    check_output_name(target, plan.recipe.max_size(), "‹format›")?;
    check_output(&plan, &job.source.model, &job.sinks)?;
    check_room(&plan, &job.sinks)?;
    if !plan.in_parts {
        tell_of_name(target, reporter);
    }
    reporter.started();
    let claim = claim(target, &job.sinks.settings, commit)?;
    let measures = plan.recipe.needs_importance();
    if !commit.no_verify || measures {
        finite::check_vectors(&checkpoint)?;
    }
    let gate = Gate::open(job, &checkpoint, target, measures, reporter)?.map(Gate::of_gguf_scheme);
    let (plan, measured_importance) = match measures {
        true => {
            let (plan, importance) = Measurement { job, target, checkpoint: &checkpoint }.run(plan, reporter)?;
            (plan, Some(importance))
        }
        false => (plan, None),
    };
    tell(&plan, reporter);
    let delivery = Delivery { plan: &plan, checkpoint: &checkpoint, source: &job.source.model, commit };
    // The imatrix gets its name with the file, so that an interrupted run finds neither.
    let judge = |made: &Path| {
        gate.as_ref().map_or(Ok(()), |gate| gate.judge(&plan.model_in(made), reporter))?;
        let saved = measured_importance.as_ref().zip(job.sinks.save_imatrix.as_deref());
        saved.map_or(Ok(()), |(importance, path)| importance.save(path, commit.overwrite))
    };
    let (output, done) = super::work_if(&delivery, claim, &job.limits, reporter, judge)?;
    clear_away(target)?;
    let measured = gate.and_then(|gate| gate.measured());
    let output = plan.model_in(&output.commit()?);
    Ok(Box::new(GgufReport { plan, output, done, measured, time: begun.elapsed() }))
}

/// The importance of inputs as it was measured.
struct MeasuredImportance {
    sums: BTreeMap<String, InputSums>,
    provenance: Provenance,
}

impl MeasuredImportance {
    fn save(&self, path: &Path, overwrite: bool) -> Result<(), Error> {
        // Hours may have passed since the first look.
        refuse_existing(path, overwrite)?;
        Ok(imatrix::write(path, &self.sums, &self.provenance)?)
    }
}

/// A measurement of the importance of inputs.
struct Measurement<'a> {
    job: &'a Job,
    target: &'a Path,
    checkpoint: &'a Checkpoint,
}

impl Measurement<'_> {
    /// The plan with the importance of inputs, measured on the data, and that importance.
    fn run(&self, plan: GgufPlan, reporter: &Reporter<'_>) -> Result<(GgufPlan, MeasuredImportance), Error> {
        let data = &self.job.data;
        let mut decoder = Decoder::open(self.checkpoint)?;
        let calibration = Calibration { job: self.job, checkpoint: self.checkpoint, target: self.target };
        let loaded = calibration.load(&mut decoder, 0, reporter)?;
        let sequences = loaded.sequences();
        let progress = reporter.stage(Stage::Calibration, Unit::Tokens);
        let (watch, ops, memory) = (progress.watch(), data.precision.ops(), self.job.limits.memory.0);
        let key = format!("{} {}", plan.fingerprint, loaded.key(data.precision.name()));
        if State::is_of_another(self.target, &key) {
            return Err(OutputError::other_run(self.target).into());
        }
        let keep = Keep { target: self.target, key: &key, every: KEPT_EVERY };
        let work = || imatrix::collect(&plan, &decoder, &ops, sequences, memory, keep, reporter.cancel().flag(), watch);
        let sums = self.job.limits.pool()?.install(work);
        drop(progress);
        if let Err(lost) = reporter.refuse_lost() {
            let failure = |cause: io::Error| Error::io("cannot remove what was measured", &cause);
            State::remove(self.target).map_err(failure)?;
            return Err(lost);
        }
        let sums = sums?;
        let names = data.files.iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
        let provenance = Provenance {
            file: None,
            datasets: names.collect(),
            chunks: sequences.len() as u32,
            chunk_size: sequences.iter().map(Vec::len).max().unwrap_or(0) as u32,
        };
        let importance = Arc::new(Importance::of_sums(&sums, provenance.clone()));
        let recipe = plan.recipe.with_importance(importance);
        let plan = planned(self.checkpoint, recipe, Some(self.target))?;
        Ok((plan, MeasuredImportance { sums, provenance }))
    }
}

/// The result of quantizing to a GGUF file.
pub struct GgufReport {
    /// The plan of the file.
    pub plan: GgufPlan,
    /// The file.
    pub output: PathBuf,
    /// The number of jobs, and those done by an interrupted run.
    pub done: Done,
    /// The measured distance of the file from its source, if any.
    pub measured: Option<Value>,
    /// The duration of the run.
    pub time: Duration,
}

impl GgufReport {
    /// The report as JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "output": path_json(&self.output),
            "format": "gguf",
            "recipe": self.plan.recipe,
            "family": self.plan.family,
            "architecture": self.plan.architecture,
            "quantized_layers": self.plan.quantized(),
            "types": tensor_types(&self.plan),
            "sizes": self.plan.sizes(),
            "kept_tensors": self.plan.tensors.len() - self.plan.quantized(),
            "source_bytes": self.plan.source_bytes,
            "output_bytes": self.plan.layout.total_size(),
            "bits_per_weight": self.plan.bits_per_weight(),
            "seconds": self.time.as_secs_f64(),
            "jobs": self.done.jobs,
            "resumed_jobs": self.done.resumed,
            "loading": loading::json(&self.plan.loaders(), &self.output),
            "notices": self.plan.remarks().collect::<Vec<_>>(),
            "evaluation": self.measured,
        })
    }
}

/// The number of tensors of each type.
fn tensor_types(plan: &GgufPlan) -> BTreeMap<String, usize> {
    let mut types = BTreeMap::new();
    plan.tensors.iter().for_each(|tensor| *types.entry(tensor.kind.to_string()).or_default() += 1);
    types
}
