//! From work that has ended to an output under its name, for every command that makes one.

use crate::args::FinishArgs;
use crate::failure::Failure;
use kvant_container::{Checkpoint, Durability};
use kvant_llm::engine::{Acceptance, Deliverable, Done, EngineError, Output, Placed};

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
