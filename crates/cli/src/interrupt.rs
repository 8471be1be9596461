//! Ctrl-C, and the signals that a system or a closed terminal ends processes with: the first asks the run to stop, the second
//! ends the process. Commands that only read end at once.

use kvant::CancelToken;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// The number of Ctrl-C's signal.
const INTERRUPT: u8 = 2;

/// The last signal that came.
static SIGNAL: LazyLock<Arc<AtomicUsize>> = LazyLock::new(|| Arc::new(AtomicUsize::new(usize::from(INTERRUPT))));

/// Lets the first signal cancel a run, and the second end the process. A signal that is ignored, as the hang-up under `nohup`,
/// stays ignored.
pub fn cancel_on_signal(token: &CancelToken) {
    let token = token.clone();
    on_signal(move || {
        if token.cancel() {
            exit();
        }
    });
}

/// Lets a signal end the process, with the exit code that says so.
pub fn exit_on_signal() {
    on_signal(exit);
}

/// The exit code of a run that a signal interrupted, as shells report a process that it has ended. Where the system does not report the
/// signal, it is that of Ctrl-C.
pub fn exit_code() -> u8 {
    128 + u8::try_from(SIGNAL.load(Ordering::Relaxed)).unwrap_or(INTERRUPT)
}

fn exit() {
    std::process::exit(exit_code().into());
}

/// Calls `came` for each signal that is not ignored.
#[cfg(target_os = "linux")]
fn on_signal(mut came: impl FnMut() + Send + 'static) {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
    use signal_hook::iterator::Signals;
    let ignored = ignored_signals();
    // Where it is handled, a write beyond the largest size of files fails with an error, instead of ending the process without a word.
    let handled = [SIGINT, SIGTERM, SIGHUP, SIGXFSZ].into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
    // Without a handler a signal kills at once: a run still resumes from its journal, and a graph's temporary files have
    // no names.
    let Ok(mut signals) = Signals::new(handled) else { return };
    let handle = signals.handle();
    let watch = move || {
        for signal in signals.forever().filter(|signal| *signal != SIGXFSZ) {
            SIGNAL.store(usize::try_from(signal).unwrap_or(0), Ordering::Relaxed);
            came();
        }
    };
    if std::thread::Builder::new().name("signals".to_owned()).spawn(watch).is_err() {
        handle.close();
    }
}

/// The signals that this process was started to ignore, a bit for each.
#[cfg(target_os = "linux")]
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.unwrap_or(0)
}

/// The same; if one of the signals is ignored, none is handled, since they cannot be distinguished beforehand.
#[cfg(not(target_os = "linux"))]
fn on_signal(came: impl FnMut() + Send + 'static) {
    if ctrlc::try_set_handler(came).is_ok() {
        tell_signals_apart();
    }
}

/// Records the signal before the handler above is called.
#[cfg(all(unix, not(target_os = "linux")))]
fn tell_signals_apart() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        // An unidentified signal counts as Ctrl-C.
        let _ = signal_hook::flag::register_usize(signal, SIGNAL.clone(), usize::try_from(signal).unwrap_or(0));
    }
}

#[cfg(not(unix))]
fn tell_signals_apart() {}
