//! From a plan to an output under its name, for every command that makes one. Not the work between.

use crate::args::FinishArgs;
use crate::failure::Failure;
use crate::printer::Printer;
use kvant_container::{Checkpoint, Durability};
use kvant_llm::blockwise::State;
use kvant_llm::engine::{Acceptance, Begun, Deliverable, Done, EngineError, Output, Placed};
use std::path::Path;

/// An output to be made of a checkpoint.
pub struct Delivery<'a, P: Deliverable> {
    /// The plan.
    pub plan: &'a P,
    /// What it is made of.
    pub checkpoint: &'a Checkpoint,
    /// Where that lies.
    pub source: &'a Path,
    /// Where the output goes.
    pub target: &'a Path,
    /// How it gets its name.
    pub finish: FinishArgs,
}

impl<P: Deliverable> Delivery<'_, P> {
    /// Begins the output or goes on with it, lets the work be done, and gives it its name. An output that an earlier run has
    /// made is found done, with all its `jobs`.
    ///
    /// # Errors
    /// What is in the way, and those of [`settle`].
    pub fn make(
        &self,
        jobs: usize,
        printer: &Printer,
        work: impl FnOnce(&Output) -> Result<Done, EngineError>,
    ) -> Result<(Placed, Done), Failure> {
        match begin(self.plan, (self.source, self.target), self.finish, printer)? {
            Begun::Finished(placed) => Ok((placed, Done { jobs, resumed: jobs })),
            Begun::Working(output) => {
                let done = work(&output);
                settle(*output, done, (self.plan, self.checkpoint), self.finish)
            }
        }
    }
}

/// Begins an output, or goes on with it, and says what of another recipe it takes the place of.
///
/// # Errors
/// What is in the way.
pub fn begin(
    plan: &dyn Deliverable,
    (source, target): (&Path, &Path),
    finish: FinishArgs,
    printer: &Printer,
) -> Result<Begun, Failure> {
    let begun = Output::begin(plan, source, target, finish.overwrite)?;
    if let Begun::Working(output) = &begun
        && let Some(discarded) = output.discarded()
    {
        let blocks = State::directory(target);
        let also = blocks.exists().then_some(blocks.as_path());
        tell_discarded(also.into_iter().chain([discarded]), printer);
    }
    Ok(begun)
}

/// Says which work of an earlier run is of no use to this one.
pub fn tell_discarded<'p>(paths: impl IntoIterator<Item = &'p Path>, printer: &Printer) {
    let names = paths.into_iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let names = names.collect::<Vec<_>>().join(" and ");
    printer.note(&format!("{names}, which an earlier run with another recipe, source or data left, is discarded"));
}

/// Refuses what would not pass verification when it is made, unless nobody looks.
///
/// # Errors
/// What is wrong with the source or its name.
pub fn foresee(plan: &dyn Deliverable, checkpoint: &Checkpoint, finish: FinishArgs) -> Result<(), Failure> {
    if finish.no_verify { Ok(()) } else { Ok(plan.foresee(checkpoint)?) }
}

/// Gives an output its name, or removes what no rerun could use.
///
/// # Errors
/// What the work ended with; a check that the output does not pass; the system's.
pub fn settle(
    output: Output,
    work: Result<Done, EngineError>,
    (plan, checkpoint): (&dyn Deliverable, &Checkpoint),
    finish: FinishArgs,
) -> Result<(Placed, Done), Failure> {
    let done = match work {
        Ok(done) => done,
        Err(error) => {
            if error.is_final() {
                output.discard()?;
            }
            return Err(error.into());
        }
    };
    let durability = if finish.sync { Durability::Disk } else { Durability::Process };
    let acceptance = if finish.no_verify { Acceptance::Unseen } else { Acceptance::Verified };
    Ok((output.place(plan, checkpoint, durability, acceptance)?, done))
}
