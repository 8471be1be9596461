//! Reasons that an output cannot be written.

use super::given::changed;
use super::journal::Journal;
use super::paths::Paths;
use crate::diagnostic::{Diagnostic, ErrorKind};
use crate::error::io_hint;
use crate::path_text::shown;
use crate::remedy::Remedy;
use std::io;
use std::path::{Path, PathBuf};

/// Reasons that an output cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The directory is there already (*invalid*).
    #[error("{} exists already", crate::path_text::shown(.0))]
    Exists(PathBuf),
    /// The existing output does not look like a model (*invalid*).
    #[error("{} exists already and cannot be replaced: {reason}", crate::path_text::shown(path))]
    NotReplaceable {
        /// The path.
        path: PathBuf,
        /// Its kind.
        reason: String,
    },
    /// The output would overwrite its own source (*invalid*).
    #[error("the output {} is the source or holds it", crate::path_text::shown(.0))]
    IsSource(PathBuf),
    /// The path ends in no name (*invalid*).
    #[error("{} does not end in a name", crate::path_text::shown(.0))]
    NoName(PathBuf),
    /// Another process is making it.
    #[error("another run{} is writing {}", by(*process), crate::path_text::shown(path))]
    Busy {
        /// The output.
        path: PathBuf,
        /// The process, where it has said which it is.
        process: Option<u32>,
    },
    /// An interrupted run with other options has done work on it (*invalid*).
    #[error("{} has an unfinished run with other options: {}", crate::path_text::shown(path), told(differing))]
    OtherOptions {
        /// The output.
        path: PathBuf,
        /// The options that differ.
        differing: Vec<Differing>,
    },
    /// An interrupted run with the same options has done work on another plan (*invalid*).
    #[error("{} has an unfinished run {}", crate::path_text::shown(path), of_other(changed))]
    OtherRun {
        /// The output.
        path: PathBuf,
        /// The changes since it began, where known.
        changed: Vec<String>,
    },
    /// The staging directory is not of Kvant's making (*invalid*).
    #[error("{} exists and is not an unfinished output of Kvant", crate::path_text::shown(.0))]
    InTheWay(PathBuf),
    /// Paths of an unfinished output exist without a journal that says whose they are (*invalid*). There is at least one.
    #[error("{}", unrecorded(.0))]
    Unrecorded(Vec<PathBuf>),
    /// A finished part of an interrupted run was changed after Kvant wrote it (*invalid*).
    #[error("{} is finished work of this run, and was changed since: {how}", crate::path_text::shown(path))]
    Changed {
        /// The finished part.
        path: PathBuf,
        /// The change.
        how: String,
    },
    /// The disk has no room.
    #[error(
        "{}{} needs up to {needed} bytes of disk space{}, and {available} are free in {}",
        crate::path_text::shown(path),
        beside(*others),
        of_these(*temporary),
        crate::path_text::shown(directory)
    )]
    NoRoom {
        /// The first output.
        path: PathBuf,
        /// The directory that it is in.
        directory: PathBuf,
        /// How many more there are on the same disk.
        others: usize,
        /// Bytes that they take together.
        needed: u64,
        /// Those of them for temporary files, such as activations between blocks.
        temporary: u64,
        /// Whether those are of data, and smaller with less of them.
        of_data: bool,
        /// Bytes that are free.
        available: u64,
    },
    /// The system.
    #[error("cannot {action} {}: {cause}", crate::path_text::shown(path))]
    Io {
        /// The attempted operation, as a verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
}

/// An option of two runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differing {
    /// Its name, as the user spells it.
    pub name: String,
    /// Its value in the unfinished run, none where it was not given.
    pub then: Option<String>,
    /// Its value in this one.
    pub now: Option<String>,
}

fn unrecorded(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| shown(path)).collect();
    match &names[..] {
        [name] => format!("{name} exists and is not an unfinished output of Kvant"),
        names => format!(
            "{} exist and are not an unfinished output of Kvant that can resume: their journal is missing or damaged",
            names.join(", ")
        ),
    }
}

/// The options that differ, with both values, as a part of a sentence.
fn told(differing: &[Differing]) -> String {
    let one = |Differing { name, then, now }: &Differing| {
        let value = |value: &Option<String>| {
            value.as_ref().map_or_else(|| format!("no {name}"), |value| format!("{name} {}", value.escape_debug()))
        };
        format!("{}, now {}", value(then), value(now))
    };
    differing.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// The kind of an unfinished run, as part of a sentence.
fn of_other(changed: &[String]) -> String {
    match changed {
        [] => "of another source, recipe file, data or version of Kvant".to_owned(),
        [one] => format!("that cannot be resumed, because {one} has changed since it started"),
        [first @ .., last] => {
            format!("that cannot be resumed, because {} and {last} have changed since it started", first.join(", "))
        }
    }
}

/// The process, as part of a sentence.
fn by(process: Option<u32>) -> String {
    process.map_or_else(String::new, |process| format!(" (process {process})"))
}

impl OutputError {
    /// That the output has unfinished work of another plan; what has changed since then is looked up.
    pub fn other_run(target: &Path) -> OutputError {
        let found = Paths::of(target).map(|paths| Journal::peek(&paths.journal)).unwrap_or_default();
        OutputError::OtherRun { path: target.to_owned(), changed: changed(&found.given) }
    }

    /// The system's answer to an `action`, a verb, on a path.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OutputError {
        let path = path.to_owned();
        move |cause| OutputError::Io { action, path, cause }
    }
}

impl Diagnostic for OutputError {
    fn kind(&self) -> ErrorKind {
        match self {
            OutputError::Exists(_)
            | OutputError::NotReplaceable { .. }
            | OutputError::IsSource(_)
            | OutputError::NoName(_)
            | OutputError::OtherOptions { .. }
            | OutputError::OtherRun { .. }
            | OutputError::InTheWay(_)
            | OutputError::Unrecorded(_)
            | OutputError::Changed { .. } => ErrorKind::Invalid,
            OutputError::Busy { .. } | OutputError::NoRoom { .. } | OutputError::Io { .. } => ErrorKind::Io,
        }
    }

    fn hint(&self) -> Option<String> {
        Remedy::hint(&self.remedies())
    }

    fn remedies(&self) -> Vec<Remedy> {
        match self {
            OutputError::Exists(_) => vec![Remedy::ChooseOutput, Remedy::Overwrite],
            OutputError::NotReplaceable { path, .. } => {
                let moved = match path.is_dir() {
                    true => "‹overwrite› removes only unmodified files that Kvant wrote: move the others away",
                    false => "‹overwrite› replaces a file only with one of its kind: move this one away",
                };
                vec![Remedy::text(moved), Remedy::ChooseOutput]
            }
            OutputError::IsSource(_) | OutputError::NoName(_) => vec![Remedy::ChooseOutput],
            OutputError::Busy { .. } => vec![Remedy::text("wait for it, or stop it")],
            OutputError::OtherRun { .. } => {
                vec![
                    Remedy::text("restore what has changed, its time stamp included, to resume"),
                    Remedy::Restart,
                    Remedy::ChooseOutput,
                ]
            }
            OutputError::OtherOptions { .. } => {
                vec![Remedy::text("repeat the original options to resume"), Remedy::Restart, Remedy::ChooseOutput]
            }
            OutputError::Changed { path, .. } => {
                vec![Remedy::text(format!("restore it, or move {} away: the next run makes it again", shown(path)))]
            }
            OutputError::InTheWay(path) => vec![Remedy::text(format!("move {} away", shown(path)))],
            OutputError::Unrecorded(paths) => {
                let paths: Vec<String> = paths.iter().map(|path| shown(path)).collect();
                let these = format!("move {} away", paths.join(", "));
                vec![Remedy::text(these), Remedy::setting("output", "choose another name with ‹output›")]
            }
            OutputError::NoRoom { of_data, .. } => {
                let mut ways =
                    vec![Remedy::text("free some space"), Remedy::text("choose a directory on another disk")];
                if *of_data {
                    ways.push(Remedy::setting("num-samples", "take less data with ‹num-samples›"));
                }
                ways
            }
            OutputError::Io { cause, .. } => Remedy::of_hint(io_hint(cause).map(str::to_owned)),
        }
    }
}

/// What goes to temporary files, as a part of a sentence.
fn of_these(temporary: u64) -> String {
    if temporary == 0 { String::new() } else { format!(", {temporary} of them for temporary files while it is made") }
}

/// The number of further outputs, as part of a sentence.
fn beside(others: usize) -> String {
    if others == 0 { String::new() } else { format!(", with {others} more beside it,") }
}
