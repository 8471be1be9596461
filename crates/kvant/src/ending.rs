//! How a request ends that was stopped, or whose files were lost or rewritten while it read them. Not the work.

use crate::error::{Error, ErrorKind};
use crate::text::shown;
use kvant_container::supply::Unsupplied;
use kvant_container::{FileChanges, LostFile};
use std::path::Path;

/// The state that a request leaves when it is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// Work that the same request resumes.
    Resumes,
    /// Nothing.
    StartsOver,
}

impl Stopped {
    fn words(self) -> &'static str {
        match self {
            Stopped::Resumes => "Interrupted. Run the same command again to resume.",
            Stopped::StartsOver => "Interrupted. Nothing was written: the same command starts over.",
        }
    }
}

/// Carries out a request. A stopped request reports what happens next, as given by `stopped`; one whose source was truncated, or whose disk failed, ends
/// with an error that names the file, regardless of the work's result: part of the data read were zeros. Work that failed over a file
/// that was rewritten meanwhile names that file too. Work that succeeded has looked at its sources before it named its output;
/// [`concluded_reading`] is for requests that have none.
///
/// # Errors
/// Those of `work`, and files that were lost.
pub(crate) fn concluded<T>(
    stopped: impl FnOnce() -> Stopped,
    work: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let lost = FileChanges::from_now_on();
    let result = work();
    match (lost.first(), result) {
        // Whoever waits for bytes of a model elsewhere does without them when the user stops.
        (Some(LostFile { unsupplied: Some(Unsupplied::Cancelled), .. }), _) => {
            Err(Error::new(ErrorKind::Interrupted, stopped().words()))
        }
        (Some(file), _) => Err(of_lost_file(&file)),
        (None, Err(error)) if error.kind == ErrorKind::Interrupted => {
            Err(Error { message: stopped().words().to_owned(), ..error })
        }
        (None, Err(error)) => Err(match lost.first_shortened() {
            Some(file) => of_lost_file(&file),
            None => blamed_on_change(error, &lost),
        }),
        (None, result) => result,
    }
}

/// Carries out a request that only reads: what it found of files that were rewritten meanwhile is of no version of them.
///
/// # Errors
/// As [`concluded`], and files that were rewritten.
pub(crate) fn concluded_reading<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    concluded(
        || Stopped::StartsOver,
        || {
            let files = FileChanges::from_now_on();
            let found = work()?;
            refuse_changed(&files)?;
            Ok(found)
        },
    )
}

/// Refuses results of files that were rewritten while they were read.
pub(crate) fn refuse_changed(files: &FileChanges) -> Result<(), Error> {
    files.first_changed().map_or(Ok(()), |path| Err(of_changed_file(&path)))
}

/// What is wrong with a model may be that it was being rewritten. What the system refused, or the user asked for, is not.
fn blamed_on_change(error: Error, files: &FileChanges) -> Error {
    match error.kind {
        ErrorKind::Invalid | ErrorKind::Unsupported | ErrorKind::Internal => {
            files.first_changed().map_or(error, |path| of_changed_file(&path))
        }
        _ => error,
    }
}

fn of_changed_file(path: &Path) -> Error {
    let message = format!("{} has changed while it was read; its results are discarded", shown(path));
    let hint = "wait until the file is complete, and run the same command again";
    Error::system(message).with_hint(Some(hint.to_owned()))
}

/// The error for a file that was lost while it was read.
pub(crate) fn of_lost_file(file: &LostFile) -> Error {
    if let Some(Unsupplied::Failed(problem)) = &file.unsupplied {
        let hint = "look at the network or the server, then run the same command again to resume";
        return Error::system(problem).with_hint(Some(hint.to_owned()));
    }
    let path = shown(&file.path);
    let (message, hint) = match file.is_shorter {
        true => (
            format!("{path} was cut short while it was read; its results are discarded"),
            "restore the file, and run the same command again",
        ),
        false => (
            format!("{path} could not be read: its disk or the network failed"),
            "look at the disk or the network, then run the same command again",
        ),
    };
    Error::system(message).with_hint(Some(hint.to_owned()))
}

/// Keeps tests that rewrite or truncate files apart: files that were lost are known to the whole process.
#[cfg(test)]
pub(crate) fn files_are_mine() -> std::sync::MutexGuard<'static, ()> {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interruption_message_states_what_happens_next() {
        let _lock = files_are_mine();
        let stop = || Err::<(), _>(Error::new(ErrorKind::Interrupted, "stopped"));
        let of = |stopped| concluded(|| stopped, stop).unwrap_err();
        assert!(of(Stopped::Resumes).message.ends_with("to resume."));
        assert!(of(Stopped::StartsOver).message.ends_with("starts over."));
        assert_eq!(of(Stopped::Resumes).kind, ErrorKind::Interrupted);
    }

    #[cfg(unix)]
    #[test]
    fn truncated_source_is_an_error_that_names_it() {
        let _lock = files_are_mine();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        std::fs::write(&path, vec![7; 100_000]).unwrap();
        let read = || {
            let file = kvant_container::MappedFile::open(&path)?;
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(10).unwrap();
            Ok(file.iter().map(|byte| u64::from(*byte)).sum::<u64>())
        };
        let error = concluded(|| Stopped::Resumes, read).unwrap_err();
        assert_eq!(error.kind, ErrorKind::System);
        assert!(error.message.contains("weights was cut short"), "{}", error.message);
    }
}
