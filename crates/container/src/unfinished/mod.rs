//! An output while it is made: the names beside its own, the lock that keeps other runs out, the journal of finished work, and what
//! the run was given, so that an interrupted run resumes and one with other options is refused. Not the work, and not the files of
//! any format: checkpoints, GGUF files and graphs share this.

mod claim;
mod given;
mod journal;
mod kept_results;
mod output_error;
mod own;
mod paths;
mod placing;
mod room;

pub use claim::{Claim, Held};
pub use given::state_of;
pub use journal::{Entry, Found, Given, Input, Journal, Options, Written};
pub use kept_results::KeptResults;
pub use output_error::{Differing, OutputError};
pub use own::{remove_results, remove_results_of_blocks, remove_written};
pub use paths::{
    Paths, blocks_beside, check_beside, checkpoint_beside, is_report, learned_rotation_beside, part_beside,
    paths_beside, rejection_report, remove, samples_beside, statistics_beside,
};
pub use placing::Placing;
pub use room::Room;
