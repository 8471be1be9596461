//! Ctrl-C: the first asks the run to stop, the second ends the process.

use crate::failure::Kind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The flag that the first Ctrl-C sets. Where the signal is ignored, as under `nohup`, it stays ignored.
pub fn flag() -> Arc<AtomicBool> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let set = cancelled.clone();
    let watching = ctrlc::try_set_handler(move || {
        if set.swap(true, Ordering::Relaxed) {
            std::process::exit(Kind::Interrupted.exit_code().into());
        }
    });
    // Without a handler Ctrl-C kills at once, and the run goes on from its journal all the same.
    drop(watching);
    cancelled
}
