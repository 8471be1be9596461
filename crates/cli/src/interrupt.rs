//! Ctrl-C, and the signals that a system or a closed terminal ends processes with: the first asks the run to stop, the second
//! ends the process.

use crate::failure::Kind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The flag that the first signal sets. Where one of them is ignored, as the hang-up under `nohup`, all stay as they are.
pub fn flag() -> Arc<AtomicBool> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let set = cancelled.clone();
    let watching = ctrlc::try_set_handler(move || {
        if set.swap(true, Ordering::Relaxed) {
            std::process::exit(Kind::Interrupted.exit_code().into());
        }
    });
    // Without a handler a signal kills at once: a run goes on from its journal all the same, and a graph's temporary files
    // have no names.
    drop(watching);
    cancelled
}
