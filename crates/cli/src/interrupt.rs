//! Ctrl-C, and the signals that a system or a closed terminal ends processes with: the first asks the run to stop, the second
//! ends the process.

use crate::failure::exit_code;
use kvant::{CancelToken, ErrorKind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// The number of Ctrl-C's signal.
const INTERRUPT: u8 = 2;

/// The last signal that came.
static SIGNAL: LazyLock<Arc<AtomicUsize>> = LazyLock::new(|| Arc::new(AtomicUsize::new(usize::from(INTERRUPT))));

/// Lets the first signal cancel a run. Where one of them is ignored, as the hang-up under `nohup`, all stay as they are.
pub fn cancel_on_signal(token: &CancelToken) {
    let token = token.clone();
    let watching = ctrlc::try_set_handler(move || {
        if token.cancel() {
            std::process::exit(exit_code(ErrorKind::Interrupted).into());
        }
    });
    // Without a handler a signal kills at once: a run resumes from its journal all the same, and a graph's temporary files
    // have no names.
    if watching.is_ok() {
        tell_signals_apart();
    }
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
