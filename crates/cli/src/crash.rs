//! Panics as errors: a hook records them, and the printer reports them.

use kvant::Error;
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Mutex;

static LAST: Mutex<Option<String>> = Mutex::new(None);

/// Runs `work`; a panic in it, on any thread, is an internal error.
///
/// # Errors
/// Those of `work`, and the panic.
pub fn catch<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    panic::set_hook(Box::new(keep));
    // Nothing that `work` touched is used after it: its request has failed as a whole.
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(Error::internal(take())))
}

/// Keeps the first panic: later ones are usually its consequences.
fn keep(info: &PanicHookInfo<'_>) {
    if let Ok(mut last) = LAST.lock() {
        last.get_or_insert(describe(info));
    }
}

fn describe(info: &PanicHookInfo<'_>) -> String {
    let place = info.location().map(|place| format!(" at {place}")).unwrap_or_default();
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    format!("{}{place}, in Kvant {}", text.unwrap_or("panic"), env!("CARGO_PKG_VERSION"))
}

fn take() -> String {
    LAST.lock().ok().and_then(|mut last| last.take()).unwrap_or_else(|| "panic".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant::ErrorKind;

    #[test]
    fn panics_become_internal_errors() {
        let failure = catch::<()>(|| panic!("on purpose")).unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Internal);
        assert!(failure.message.starts_with("internal error: on purpose at "), "{}", failure.message);
        assert!(failure.hint.is_some());
    }
}
