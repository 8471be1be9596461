//! The part of a job that a process does.

use kvant_checkpoint::engine::{PartCommand, WorkerId};

/// The part of a job that a process does, where several share it. They have nothing in common but the place of the output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sharing {
    /// All of it.
    #[default]
    Alone,
    /// The share of a worker. The last one completes the output.
    Worker {
        /// The worker.
        worker: WorkerId,
        /// The command that it was started with, for whoever completes the output.
        command: PartCommand,
    },
    /// The output is completed from the parts of all workers.
    Finish,
}
