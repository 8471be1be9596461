//! Where an output lies, and what is kept beside it while it is made.

use super::Form;
use super::output_error::OutputError;
use crate::blockwise::State;
use crate::calibration::StatisticsFile;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Every path beside an output that is in use while it is made. What else lies there under one of these names is in the way.
pub fn paths_beside(target: &Path) -> Vec<PathBuf> {
    Paths::of(target).map(|paths| paths.beside().to_vec()).unwrap_or_default()
}

/// The paths of an output: `name`, `name.partial/`, `name.partial.journal`, and `name.partial.replaced/` for what was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Paths {
    pub(super) target: PathBuf,
    pub(super) staging: PathBuf,
    pub(super) journal: PathBuf,
    pub(super) replaced: PathBuf,
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
        let (staging, journal, replaced) =
            (beside(".partial"), beside(".partial.journal"), beside(".partial.replaced"));
        Ok(Paths { target, staging, journal, replaced })
    }

    /// All names beside the target's that are in use while it is made, the journal last.
    pub(super) fn beside(&self) -> [PathBuf; 5] {
        let statistics = StatisticsFile::beside(&self.target, String::new()).path().to_owned();
        let blocks = State::directory(&self.target);
        [self.staging.clone(), self.replaced.clone(), blocks, statistics, self.journal.clone()]
    }

    /// What will be renamed.
    pub(super) fn made(&self, form: &Form) -> PathBuf {
        match form {
            Form::Directory => self.staging.clone(),
            Form::File(name) => self.staging.join(name),
        }
    }
}
