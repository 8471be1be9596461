//! Stopping a run from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request to stop, shared by the run and whoever may stop it. Work that was done so far is kept: the same job resumes there.
#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    flag: Arc<AtomicBool>,
}

impl CancelToken {
    /// A token that nobody has used yet.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Asks the run to stop. Returns whether it had been asked before.
    pub fn cancel(&self) -> bool {
        self.flag.swap(true, Ordering::Relaxed)
    }

    /// Returns whether the run was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// The flag itself, for the crates below.
    pub(crate) fn flag(&self) -> &Arc<AtomicBool> {
        &self.flag
    }
}
