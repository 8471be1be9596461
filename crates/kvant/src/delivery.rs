//! From a plan to an output under its name, for every command that makes one. Not the work between.

use crate::error::Error;
use crate::job::{Commit, Sinks};
use crate::text::shown;
use kvant_checkpoint::engine::{
    Claim, Committed, CompletePlan, Done, EngineError, Options, Output, OutputPlan, Start, Verify,
};
use kvant_container::{Checkpoint, Durability};
use std::path::Path;

/// An output to be made of a checkpoint.
pub struct Delivery<'a, P: CompletePlan> {
    /// The plan.
    pub plan: &'a P,
    /// The source.
    pub checkpoint: &'a Checkpoint,
    /// Its path.
    pub source: &'a Path,
    /// The way it gets its name.
    pub commit: Commit,
}

impl<P: CompletePlan> Delivery<'_, P> {
    /// Starts or resumes the output, does the work, and commits it. An output that an earlier run completed counts as done, with
    /// all its `jobs`.
    ///
    /// # Errors
    /// Files in the way, and the errors of [`settle_if`].
    pub fn make(
        &self,
        claim: Claim,
        jobs: usize,
        work: impl FnOnce(&Output) -> Result<Done, EngineError>,
    ) -> Result<(Committed, Done), Error> {
        self.make_if(claim, jobs, work, |_| Ok(()))
    }

    /// The same, if `gate` accepts the result.
    ///
    /// # Errors
    /// As [`make`](Self::make), and those of the gate.
    pub fn make_if(
        &self,
        claim: Claim,
        jobs: usize,
        work: impl FnOnce(&Output) -> Result<Done, EngineError>,
        gate: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<(Committed, Done), Error> {
        match Output::begin_claimed(self.plan, self.source, claim, self.commit.overwrite)? {
            Start::Finished(placed) => {
                let placed = placed.verify(self.plan, acceptance(self.commit))?;
                Ok((placed.keep_if(&self.plan.form(), gate)?, Done { jobs, resumed: jobs }))
            }
            Start::Working(output) => {
                let done = work(&output);
                settle_if(*output, done, (self.plan, self.checkpoint), Settling::of(self.commit), gate)
            }
        }
    }
}

/// Refuses outputs that another run is writing, or with unfinished work of a run with other options, unless that is to be discarded.
///
/// # Errors
/// Names the run, or the options.
pub fn check_runs<'p>(
    targets: impl IntoIterator<Item = &'p Path>,
    options: &Options,
    commit: Commit,
) -> Result<(), Error> {
    let none = Options::new();
    let options = if commit.restart { &none } else { options };
    Ok(targets.into_iter().try_for_each(|target| Claim::check(target, options))?)
}

/// Refuses an output that cannot be written: one of another run, or one whose path is occupied. Jobs without an output pass.
///
/// # Errors
/// Those of [`check_runs`], and files in the way, by name.
pub fn check_output(plan: &dyn OutputPlan, source: &Path, sinks: &Sinks) -> Result<(), Error> {
    let Some(output) = &sinks.output else { return Ok(()) };
    check_runs([output.as_path()], &sinks.settings, sinks.commit)?;
    Ok(Output::check(plan, source, output, sinks.commit.overwrite)?)
}

/// Claims an output before the work, discarding unfinished work if requested.
///
/// # Errors
/// As [`check_runs`], and the system's.
pub fn claim(target: &Path, options: &Options, commit: Commit) -> Result<Claim, Error> {
    if commit.restart {
        Claim::discard(target, false)?;
    }
    Ok(Claim::take(target, options)?)
}

/// Refuses output that would not pass verification, unless verification is skipped.
///
/// # Errors
/// Problems of the source or its name.
pub fn preflight(plan: &dyn OutputPlan, checkpoint: &Checkpoint, commit: Commit) -> Result<(), Error> {
    if commit.no_verify { Ok(()) } else { Ok(plan.preflight(checkpoint)?) }
}

/// Refuses errors of an output that were measured on a source which has changed since the output was made of it.
///
/// # Errors
/// Names the source, and the output, which is complete.
pub fn refuse_measured_change(checkpoint: &Checkpoint, output: &Path) -> Result<(), Error> {
    let Some(file) = checkpoint.changed_file().or_else(|| checkpoint.lost_file()) else { return Ok(()) };
    let message = format!("{} has changed while the errors of {} were measured", shown(file), shown(output));
    Err(Error::system(message)
        .with_hint(Some("the output is complete and of the earlier source; its errors are not known".to_owned())))
}

/// How an output is committed.
#[derive(Clone, Copy)]
pub struct Settling {
    pub durability: Durability,
    pub acceptance: Verify,
}

impl Settling {
    /// As the user wants outputs.
    pub fn of(commit: Commit) -> Settling {
        let durability = if commit.sync { Durability::Disk } else { Durability::Process };
        Settling { durability, acceptance: acceptance(commit) }
    }
}

/// Commits an output if `gate` accepts it, or removes unusable work.
///
/// # Errors
/// Errors of the work and of the gate; failed checks of the output; system errors.
pub fn settle_if(
    output: Output,
    work: Result<Done, EngineError>,
    (plan, checkpoint): (&dyn CompletePlan, &Checkpoint),
    settling: Settling,
    gate: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<(Committed, Done), Error> {
    let done = match work {
        Ok(done) => done,
        Err(error) => {
            if error.is_final() {
                output.discard()?;
            }
            return Err(error.into());
        }
    };
    let Settling { durability, acceptance } = settling;
    let gate = |made: &Path| {
        gate(made)?;
        match (checkpoint.lost_file(), checkpoint.changed_file()) {
            (Some(file), _) => Err(Error::from(EngineError::SourceLost(file.to_owned()))),
            (None, Some(file)) => Err(Error::from(EngineError::SourceChanged(file.to_owned()))),
            (None, None) => Ok(()),
        }
    };
    Ok((output.place_if(plan, checkpoint, durability, acceptance, gate)?, done))
}

/// Whether outputs are verified before they get their names.
pub fn acceptance(commit: Commit) -> Verify {
    if commit.no_verify { Verify::Skip } else { Verify::Run }
}
