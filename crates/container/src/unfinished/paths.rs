//! The paths of an output and of its work files.

use super::journal::Journal;
use super::output_error::OutputError;
use crate::json::read_json;
use crate::removal::or_gone;
use serde_json::Value;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Every work path of an output. Foreign files under one of these names are refused.
pub fn paths_beside(target: &Path) -> Vec<PathBuf> {
    Paths::of(target).map(|paths| paths.beside().to_vec()).unwrap_or_default()
}

/// The file in which a run reports why it rejected an output. The report stays until the output gets its name or is discarded.
///
/// # Errors
/// [`OutputError::NoName`].
pub fn rejection_report(target: &Path) -> Result<PathBuf, OutputError> {
    Ok(Paths::of(target)?.report)
}

/// The directory in which a block-wise run of the output `target` keeps what it needs to resume.
pub fn blocks_beside(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(".partial.blocks");
    target.with_file_name(name)
}

/// Begins the names of samples that the model has written, and of what they depend on.
pub(super) const SAMPLES: &str = "self.";

/// The file of samples that the model writes for the output `target`, among the results of a block-wise run.
pub fn samples_beside(target: &Path) -> PathBuf {
    blocks_beside(target).join(format!("{SAMPLES}jsonl"))
}

/// Begins the name of what a run has learned of a rotation.
pub(super) const ROTATION: &str = "rotation.";

/// The file of what a run for the output `target` has learned of a rotation, among the results of a block-wise run.
pub fn learned_rotation_beside(target: &Path) -> PathBuf {
    blocks_beside(target).join(format!("{ROTATION}safetensors"))
}

/// The file in which a calibrated run of the output `target` keeps its statistics.
pub fn statistics_beside(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(".partial.statistics");
    target.with_file_name(name)
}

/// Ends the name of an intermediate checkpoint.
const CHECKPOINT: &str = ".kvant-checkpoint";

/// The intermediate checkpoint of a file or a graph, under a name that users do not choose.
pub fn checkpoint_beside(output: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(output.file_name().unwrap_or_default());
    name.push(CHECKPOINT);
    output.with_file_name(name)
}

/// Stands between the name of an output and that of a part of it.
const PART: &str = ".kvant-part-";

/// A part of the output that is made apart, under a name that users do not choose.
pub fn part_beside(output: &Path, part: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(output.file_name().unwrap_or_default());
    name.push(PART);
    name.push(part);
    output.with_file_name(name)
}

/// The output that an intermediate checkpoint or a part is for; any other path as it is.
pub(super) fn named_output(path: &Path) -> PathBuf {
    let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix('.'));
    let output = name.and_then(|name| name.strip_suffix(CHECKPOINT).or_else(|| Some(name.rsplit_once(PART)?.0)));
    output.map_or_else(|| path.to_owned(), |output| path.with_file_name(output))
}

/// The paths of an output: `name`, `name.partial/`, `name.partial.journal`, `name.partial.replaced/` for what was there, and
/// `name.partial.report.json` if it was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// The output.
    pub target: PathBuf,
    /// The directory in which it is written.
    pub staging: PathBuf,
    /// The record of the work.
    pub journal: PathBuf,
    /// The previous output of that name.
    pub replaced: PathBuf,
    /// The report of its rejection.
    pub report: PathBuf,
}

impl Paths {
    /// The paths of an output.
    ///
    /// # Errors
    /// [`OutputError::NoName`].
    pub fn of(target: &Path) -> Result<Paths, OutputError> {
        let target = std::path::absolute(target).map_err(OutputError::io("find", target))?;
        let Some(name) = target.file_name().map(OsString::from) else {
            return Err(OutputError::NoName(target));
        };
        let beside = |suffix: &str| {
            let mut name = name.clone();
            name.push(suffix);
            target.with_file_name(name)
        };
        let (staging, journal, replaced, report) = (
            beside(".partial"),
            beside(".partial.journal"),
            beside(".partial.replaced"),
            beside(".partial.report.json"),
        );
        Ok(Paths { target, staging, journal, replaced, report })
    }

    /// All names beside the target's that are in use while it is made, the journal last.
    pub fn beside(&self) -> [PathBuf; 6] {
        let (staging, replaced, report) = (self.staging.clone(), self.replaced.clone(), self.report.clone());
        [staging, replaced, report, self.blocks(), self.statistics(), self.journal.clone()]
    }

    /// The directory of activations between blocks.
    pub fn blocks(&self) -> PathBuf {
        blocks_beside(&self.target)
    }

    /// The file of calibration statistics.
    pub fn statistics(&self) -> PathBuf {
        statistics_beside(&self.target)
    }

    /// The same, and the file that takes its place when it is complete.
    pub(super) fn all_statistics(&self) -> [PathBuf; 2] {
        let file = self.statistics();
        [file.clone(), file.with_extension("unfinished")]
    }

    /// Removes the replaced output, the work directory and the rejection report.
    ///
    /// # Errors
    /// System errors.
    pub fn clear_beside(&self) -> Result<(), OutputError> {
        remove(&self.replaced)?;
        remove(&self.staging)?;
        or_gone(fs::remove_file(&self.report)).map_err(OutputError::io("remove", &self.report))
    }

    /// The same, and at last the journal.
    ///
    /// # Errors
    /// System errors.
    pub fn clear_away(&self) -> Result<(), OutputError> {
        self.clear_beside()?;
        fs::remove_file(&self.journal).map_err(OutputError::io("remove", &self.journal))
    }
}

/// Refuses foreign files: without a journal that can be read they are not ours to remove.
///
/// # Errors
/// [`OutputError::Unrecorded`].
pub fn check_beside(paths: &Paths) -> Result<(), OutputError> {
    if Journal::is_begun(&paths.journal) {
        return Ok(());
    }
    // Of a rejected graph nothing but its report is left.
    let is_report = |path: &PathBuf| *path == paths.report && is_report(path);
    let is_there = |path: &PathBuf| path.symlink_metadata().is_ok() && !is_report(path);
    let found: Vec<PathBuf> = paths.beside().into_iter().filter(is_there).collect();
    let is_unbegun = found == [paths.journal.clone()] && Journal::is_empty(&paths.journal);
    if found.is_empty() || is_unbegun { Ok(()) } else { Err(OutputError::Unrecorded(found)) }
}

/// Returns whether a file is a report of Kvant's: a JSON object whose `schema` says so.
pub fn is_report(path: &Path) -> bool {
    let report: Option<Value> = read_json(path, MAX_REPORT_LEN).ok();
    report.is_some_and(|report| {
        report.get("schema").and_then(Value::as_str).is_some_and(|name| name.starts_with("kvant."))
    })
}

/// More bytes than the largest report has.
const MAX_REPORT_LEN: u64 = 1 << 28;

/// Removes a directory with all that is in it, or a file; what is gone already is removed.
///
/// # Errors
/// System errors.
pub fn remove(path: &Path) -> Result<(), OutputError> {
    let removed = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    };
    removed.map_err(OutputError::io("remove", path))
}
