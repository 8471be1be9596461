//! One of several workers: does its share of a checkpoint, and finds out whether it is the last.

use super::planning::{self, Planned};
use crate::calibration::Calibration;
use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Stage, Unit};
use crate::job::{Job, Sharing, SourceKind};
use crate::json::path as path_json;
use crate::text::{counts, shown};
use crate::{gguf, paths, remote};
use kvant_checkpoint::engine::{
    self, Claim, Done, EngineError, Output, OutputError, OutputPlan, Part, PartCommand, PartPlan, PartStart, Share,
    Start, WorkerId,
};
use kvant_checkpoint::finite;
use kvant_checkpoint::plan::{CalibratedPlan, Plan};
use kvant_container::{Checkpoint, Durability};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a worker has done of an output that lacks the parts of others.
pub struct PartReport {
    /// The worker.
    pub worker: WorkerId,
    /// The directory with what it made.
    pub path: PathBuf,
    /// Its share.
    pub share: Share,
    /// Its units of work, and those done by an earlier run.
    pub done: Done,
    /// The workers whose parts are missing. If there are none, another process completes the output.
    pub missing: Vec<usize>,
    /// The duration of the run.
    pub time: Duration,
}

impl PartReport {
    /// The report as JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "worker": self.worker.index,
            "workers": self.worker.count,
            "part": path_json(&self.path),
            "source_bytes": self.share.source_bytes,
            "part_bytes": self.share.output_bytes,
            "jobs": self.done.jobs,
            "resumed_jobs": self.done.resumed,
            "missing_workers": self.missing,
            "seconds": self.time.as_secs_f64(),
        })
    }
}

/// The complete parts of an output, of whatever model.
///
/// # Errors
/// System errors.
pub fn parts(output: &Path) -> Result<Vec<Part>, Error> {
    Ok(engine::parts_of(output)?)
}

/// Whether a process that shares a job is done with it.
pub enum Shared {
    /// Parts of others are missing, or another process completes the output.
    Done(Box<PartReport>),
    /// All parts are there: the output is to be completed. The report is of the worker's part, if this is a worker.
    Complete(Option<Box<PartReport>>),
}

/// Does the share of a worker.
///
/// # Errors
/// Jobs that cannot be shared, files in the way; what the weights or the system say; for [`Sharing::Finish`] parts that are missing.
pub fn run(job: &Job, reporter: &Reporter<'_>) -> Result<Shared, Error> {
    let begun = Instant::now();
    if let Some(reason) = indivisible_output(job)? {
        return Err(indivisible(reason));
    }
    let output = job.sinks.output.as_deref().ok_or_else(paths::no_directory)?;
    let planned = planning::plan(job, &gguf::file_name(None))?;
    planned.preflight(job)?;
    let Planned { checkpoint, plan, note, .. } = planned;
    refuse_data(&plan)?;
    let calibration = Calibration { job, checkpoint: &checkpoint, target: output };
    let plan = calibration.complete_from_file(plan, reporter)?;
    let (worker, command) = match &job.sharing {
        Sharing::Worker { worker, command } => (*worker, command),
        Sharing::Finish => return refuse_missing(&plan, output).map(|()| Shared::Complete(None)),
        Sharing::Alone => return Ok(Shared::Complete(None)),
    };
    reporter.notes(note);
    reporter.notes(plan.notices());
    let work = Work { job, checkpoint: &checkpoint, plan: &plan, output, worker, reporter };
    let (share, done) = work.carry_out(command)?;
    let parts = engine::parts_of(output)?;
    refuse_others(&parts, &plan, worker)?;
    let missing = missing(&parts, &plan, worker.count);
    let is_last = missing.is_empty() && !is_completed_elsewhere(job);
    let path = worker.part_of(output);
    let report = Box::new(PartReport { worker, path, share, done, missing, time: begun.elapsed() });
    if !is_last {
        return Ok(Shared::Done(report));
    }
    reporter.note("all workers are done: completing the output");
    Ok(Shared::Complete(Some(report)))
}

/// Returns whether another process is completing the output, or has done so.
pub fn is_completed_elsewhere(job: &Job) -> bool {
    let Some(output) = &job.sinks.output else { return false };
    let is_busy = matches!(Claim::check(output, &job.sinks.settings), Err(OutputError::Busy { .. }));
    is_busy || output.exists() && !job.sinks.commit.overwrite
}

/// Refuses to go on where another worker has made a part of a different plan.
fn refuse_others(parts: &[Part], plan: &dyn OutputPlan, worker: WorkerId) -> Result<(), Error> {
    let other = parts.iter().find(|part| part.worker.count == worker.count && !part.is_of(plan));
    other.map_or(Ok(()), |other| {
        let message = format!("worker {} has made a part with other options, or of another model", other.worker);
        let hint = "run it again with ‹restart› and the same options; the source must be the same for all workers, time stamps included";
        Err(Error::new(ErrorKind::Invalid, message).with_hint(Some(hint.to_owned())))
    })
}

/// The reason that jobs of this kind cannot be shared.
fn indivisible_output(job: &Job) -> Result<Option<&'static str>, Error> {
    Ok(match job.source.kind() {
        SourceKind::Graph => Some("an ONNX graph"),
        SourceKind::Pipeline => Some("a pipeline"),
        SourceKind::Checkpoint | SourceKind::Gguf if job.sinks.formats.len() > 1 => Some("several formats"),
        SourceKind::Checkpoint | SourceKind::Gguf if job.sinks.wants_graph() => Some("an ONNX graph"),
        SourceKind::Checkpoint | SourceKind::Gguf if job.sinks.wants_gguf() => Some("a GGUF file"),
        SourceKind::Checkpoint | SourceKind::Gguf => gguf::recipe(job)?.map(|_| "a GGUF file"),
    })
}

fn refuse_data(plan: &Plan) -> Result<(), Error> {
    let needs_data = !plan.blocks().is_empty() || plan.runs_data();
    if needs_data { Err(indivisible("algorithms and scales that depend on data")) } else { Ok(()) }
}

fn indivisible(reason: &str) -> Error {
    let message = format!("workers cannot share {reason}");
    let hint = "run it as a whole, without ‹worker›; workers share checkpoints that are quantized without data";
    Error::new(ErrorKind::Unsupported, message).with_hint(Some(hint.to_owned()))
}

/// The workers of so many that have no complete part of a plan.
fn missing(parts: &[Part], plan: &dyn OutputPlan, count: usize) -> Vec<usize> {
    let ours = parts.iter().filter(|part| part.worker.count == count && part.is_of(plan));
    let made: BTreeSet<usize> = ours.map(|part| part.worker.index).collect();
    (0..count).filter(|index| !made.contains(index)).collect()
}

/// Refuses to complete an output of which parts are missing.
fn refuse_missing(plan: &dyn OutputPlan, output: &Path) -> Result<(), Error> {
    let parts = engine::parts_of(output)?;
    let counts: BTreeSet<usize> = parts.iter().filter(|part| part.is_of(plan)).map(|part| part.worker.count).collect();
    let lacking = counts.iter().map(|count| (missing(&parts, plan, *count), *count)).min();
    let (missing, count) = match lacking {
        Some((missing, _)) if missing.is_empty() => return Ok(()),
        Some(lacking) => lacking,
        None => {
            let message = format!("the parts of {} were made of another model or with other options", shown(output));
            let hint = "if the model has changed, run the workers again with ‹restart›";
            return Err(Error::new(ErrorKind::Invalid, message).with_hint(Some(hint.to_owned())));
        }
    };
    let first = missing.first().copied().unwrap_or_default();
    let list = missing.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    let message =
        format!("{} lacks the parts of {} of {count}: {list}", shown(output), counts::number(missing.len(), "worker"));
    let hint = format!("run them again, beginning with worker {first}/{count}; finished parts are kept");
    Err(Error::new(ErrorKind::Invalid, message).with_hint(Some(hint)))
}

/// The work of one worker.
struct Work<'a, 'e> {
    job: &'a Job,
    checkpoint: &'a Checkpoint,
    plan: &'a CalibratedPlan,
    output: &'a Path,
    worker: WorkerId,
    reporter: &'a Reporter<'e>,
}

impl Work<'_, '_> {
    fn carry_out(&self, command: &PartCommand) -> Result<(Share, Done), Error> {
        let Work { job, plan, output, worker, .. } = self;
        Output::check_for_workers(&job.source.model, output, job.sinks.commit.overwrite)?;
        Claim::check(output, &job.sinks.settings)?;
        let share = engine::shares(plan, worker.count).swap_remove(worker.index);
        let part = PartPlan::new(*plan, *worker, &share, command.clone());
        if job.sinks.commit.restart {
            engine::discard_part(output, *worker)?;
        }
        self.reporter.started();
        remote::allow_download(job, self.checkpoint, share.source_bytes, self.reporter)?;
        let done = match part.start(output, *worker)? {
            PartStart::Complete => Done { jobs: share.jobs.len(), resumed: share.jobs.len() },
            PartStart::Open => self.make(&part, &share)?,
        };
        Ok((share, done))
    }

    fn make(&self, part: &PartPlan, share: &Share) -> Result<Done, Error> {
        let Work { job, checkpoint, plan, output, worker, reporter } = self;
        if !job.sinks.commit.no_verify {
            finite::check_share(plan, checkpoint, share, remote::looked_at_ahead(checkpoint))?;
        }
        let claim = Claim::take(&worker.part_of(output), &job.sinks.settings)?;
        let begun = match Output::begin_claimed(part, &job.source.model, claim, false)? {
            Start::Working(begun) => begun,
            Start::Finished(made) => {
                made.commit()?;
                return Ok(Done { jobs: share.jobs.len(), resumed: share.jobs.len() });
            }
        };
        let threads = job.limits.threads();
        let work = counts::number(share.jobs.len(), "unit");
        reporter.detail(&format!("worker {worker}: {work} of work, {threads} threads"));
        let progress = reporter.stage(Stage::Writing, Unit::Bytes);
        let run = engine::run_jobs(plan, checkpoint, &begun, &share.jobs, threads, reporter.cancel().flag(), &progress);
        drop(progress);
        if run.as_ref().is_err_and(EngineError::is_final) {
            begun.discard()?;
            return Ok(run?);
        }
        let done = run?;
        let durability = if job.sinks.commit.sync { Durability::Disk } else { Durability::Process };
        begun.place_part(part, durability)?;
        Ok(done)
    }
}

/// Notes what a run has taken over from workers, and which of it was damaged.
pub fn note_parts(output: &Output, reporter: &Reporter<'_>) {
    let gathered = output.gathered();
    for part in gathered.iter().filter(|part| part.damaged > 0) {
        let damaged = counts::number(part.damaged, "unit");
        reporter.warning(&format!("damaged, and made again: {damaged} of work of worker {}", part.worker));
    }
    if !gathered.is_empty() {
        let jobs = counts::number(gathered.iter().map(|part| part.jobs).sum::<usize>(), "unit");
        reporter.note(&format!("took over {jobs} of work of {}", counts::number(gathered.len(), "worker")));
    }
}

/// The shares of so many workers, for a plan.
///
/// # Errors
/// Jobs that cannot be shared.
pub fn shares(job: &Job, plan: Option<&Plan>, workers: usize) -> Result<Vec<Share>, Error> {
    match (indivisible_output(job)?, plan) {
        (Some(reason), _) => Err(indivisible(reason)),
        (None, None) => Err(indivisible("this model")),
        (None, Some(plan)) => {
            refuse_data(plan)?;
            Ok(engine::shares(plan, workers))
        }
    }
}
