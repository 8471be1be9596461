//! Where an output lies, and what is kept beside it while it is made.

use super::Form;
use super::output_error::OutputError;
use crate::calibration::StatisticsFile;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Every path beside an output that is in use while it is made. What else lies there under one of these names is in the way.
pub fn paths_beside(target: &Path) -> Vec<PathBuf> {
    Paths::of(target).map(|paths| paths.beside().to_vec()).unwrap_or_default()
}

/// Where a run reports why it does not give an output its name. The report stays until the output gets its name or is discarded.
///
/// # Errors
/// [`OutputError::NoName`].
pub fn rejection_report(target: &Path) -> Result<PathBuf, OutputError> {
    Ok(Paths::of(target)?.report)
}

/// The directory in which a block-wise run of the output `target` keeps what it needs to resume.
pub(crate) fn blocks_beside(target: &Path) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(".partial.blocks");
    target.with_file_name(name)
}

/// The paths of an output: `name`, `name.partial/`, `name.partial.journal`, `name.partial.replaced/` for what was there, and
/// `name.partial.report.json` if it was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Paths {
    pub(super) target: PathBuf,
    pub(super) staging: PathBuf,
    pub(super) journal: PathBuf,
    pub(super) replaced: PathBuf,
    pub(super) report: PathBuf,
}

impl Paths {
    pub(super) fn of(target: &Path) -> Result<Paths, OutputError> {
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
    pub(super) fn beside(&self) -> [PathBuf; 6] {
        let (staging, replaced, report) = (self.staging.clone(), self.replaced.clone(), self.report.clone());
        [staging, replaced, report, self.blocks(), self.statistics(), self.journal.clone()]
    }

    /// Where the activations between blocks are kept.
    pub(super) fn blocks(&self) -> PathBuf {
        blocks_beside(&self.target)
    }

    /// Where the statistics of calibration are kept.
    pub(super) fn statistics(&self) -> PathBuf {
        StatisticsFile::beside(&self.target, String::new()).path().to_owned()
    }

    /// What will be renamed.
    pub(super) fn made(&self, form: &Form) -> PathBuf {
        match form {
            Form::Directory => self.staging.clone(),
            Form::File(name) => self.staging.join(name),
        }
    }
}
