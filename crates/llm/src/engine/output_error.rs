//! What keeps an output from being made.

use kvant_container::{ErrorKind, io_hint};
use std::io;
use std::path::{Path, PathBuf};

/// What keeps an output from being made.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The directory is there already (*invalid*).
    #[error("{} exists already", .0.display())]
    Exists(PathBuf),
    /// What would be replaced does not look like a model (*invalid*).
    #[error("{} exists already and cannot be replaced: {reason}", path.display())]
    NotReplaceable {
        /// The path.
        path: PathBuf,
        /// What it is.
        reason: &'static str,
    },
    /// The output would overwrite its own source (*invalid*).
    #[error("the output {} is the source or holds it", .0.display())]
    IsSource(PathBuf),
    /// The path ends in no name (*invalid*).
    #[error("{} does not end in a name", .0.display())]
    NoName(PathBuf),
    /// Another process is making it.
    #[error("another run is writing {}", .0.display())]
    Busy(PathBuf),
    /// The staging directory is not of Kvant's making (*invalid*).
    #[error("{} is in the way: it is no unfinished output of Kvant", .0.display())]
    InTheWay(PathBuf),
    /// The disk has no room.
    #[error("{}{} needs {needed} bytes of disk space, and {available} are free", path.display(), beside(*others))]
    NoRoom {
        /// The first output.
        path: PathBuf,
        /// How many more there are on the same disk.
        others: usize,
        /// Bytes that they take together.
        needed: u64,
        /// Bytes that are free.
        available: u64,
    },
    /// The system.
    #[error("cannot {action} {}: {cause}", path.display())]
    Io {
        /// What was attempted, as a verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
}

impl OutputError {
    /// Whose fault it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            OutputError::Exists(_)
            | OutputError::NotReplaceable { .. }
            | OutputError::IsSource(_)
            | OutputError::NoName(_)
            | OutputError::InTheWay(_) => ErrorKind::Invalid,
            OutputError::Busy(_) | OutputError::NoRoom { .. } | OutputError::Io { .. } => ErrorKind::Io,
        }
    }

    /// The way out.
    pub fn hint(&self) -> Option<String> {
        match self {
            OutputError::Exists(_) => Some("choose another output with -o, or replace it with --overwrite".to_owned()),
            OutputError::NotReplaceable { .. } => Some(
                "--overwrite replaces models alone; choose another output with -o, or remove it yourself".to_owned(),
            ),
            OutputError::IsSource(_) | OutputError::NoName(_) => Some("choose another output with -o".to_owned()),
            OutputError::Busy(_) => Some("wait for it, or stop it".to_owned()),
            OutputError::InTheWay(path) => Some(format!("move {} away", path.display())),
            OutputError::NoRoom { .. } => Some("free some space, or choose a directory on another disk".to_owned()),
            OutputError::Io { cause, .. } => io_hint(cause).map(str::to_owned),
        }
    }

    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OutputError {
        let path = path.to_owned();
        move |cause| OutputError::Io { action, path, cause }
    }
}

/// How many outputs there are beside the first, as a part of a sentence.
fn beside(others: usize) -> String {
    if others == 0 { String::new() } else { format!(", with {others} more beside it,") }
}
