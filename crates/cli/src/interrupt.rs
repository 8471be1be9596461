//! Ctrl-C, and the signals that a system or a closed terminal ends processes with: the first asks the run to stop, the second
//! ends the process.

use crate::failure::Kind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// The number of Ctrl-C's signal.
const INTERRUPT: u8 = 2;

/// The last signal that came.
static SIGNAL: LazyLock<Arc<AtomicUsize>> = LazyLock::new(|| Arc::new(AtomicUsize::new(usize::from(INTERRUPT))));

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
    if watching.is_ok() {
        tell_signals_apart();
    }
    cancelled
}

/// The signal that asked the run to stop: that of Ctrl-C where the system tells of none.
pub fn signal() -> u8 {
    u8::try_from(SIGNAL.load(Ordering::Relaxed)).unwrap_or(INTERRUPT)
}

/// Notes which signal it was, before the handler above is told that there was one.
#[cfg(unix)]
fn tell_signals_apart() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // A signal that cannot be told apart counts as Ctrl-C.
        let _ = signal_hook::flag::register_usize(signal, SIGNAL.clone(), usize::try_from(signal).unwrap_or(0));
    }
}

#[cfg(not(unix))]
fn tell_signals_apart() {}
