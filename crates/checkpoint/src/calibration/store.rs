//! Statistics kept beside an unfinished output, so that a resumed run does not gather them again.

use super::statistics::Statistics;
use kvant_container::or_gone;
use kvant_container::unfinished::statistics_beside;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A file of statistics.
#[derive(Clone, Debug)]
pub struct StatisticsFile {
    path: PathBuf,
    key: String,
}

/// The contents of the file.
#[derive(Serialize, Deserialize)]
struct StoredStatistics<T> {
    /// The identity of the statistics: another plan or other data have another key.
    key: String,
    statistics: T,
}

impl StatisticsFile {
    /// The file of the output `target`; `key` names the plan, the data and how they are run.
    pub fn beside(target: &Path, key: String) -> StatisticsFile {
        StatisticsFile { path: statistics_beside(target), key }
    }

    /// The statistics, if they are there, whole, and of this key.
    pub fn read(&self) -> Option<Statistics> {
        self.stored().filter(|stored| stored.key == self.key).map(|stored| stored.statistics)
    }

    /// Returns whether there are statistics of another key, which [`write`](Self::write) replaces.
    pub fn is_of_another(&self) -> bool {
        self.stored().is_some_and(|stored| stored.key != self.key)
    }

    fn stored(&self) -> Option<StoredStatistics<Statistics>> {
        serde_json::from_slice(&fs::read(&self.path).ok()?).ok()
    }

    /// Keeps the statistics. They appear under their name when they are whole.
    ///
    /// # Errors
    ///
    /// System errors.
    pub fn write(&self, statistics: &Statistics) -> io::Result<()> {
        let bytes = serde_json::to_vec(&StoredStatistics { key: self.key.clone(), statistics })?;
        let unfinished = self.unfinished();
        if let Some(parent) = self.path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&unfinished, bytes)?;
        fs::rename(&unfinished, &self.path)
    }

    /// Removes the file, if there is one.
    ///
    /// # Errors
    ///
    /// System errors.
    pub fn remove(&self) -> io::Result<()> {
        // A run that was killed while it wrote leaves the second.
        [&self.path, &self.unfinished()].into_iter().try_for_each(|path| or_gone(fs::remove_file(path)))
    }

    fn unfinished(&self) -> PathBuf {
        self.path.with_extension("unfinished")
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_read_only_with_their_key() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("model");
        let file = StatisticsFile::beside(&target, "plan and data".to_owned());
        assert_eq!(file.read(), None);
        file.write(&Statistics::default()).unwrap();
        assert_eq!(file.read(), Some(Statistics::default()));
        let other = StatisticsFile::beside(&target, "other data".to_owned());
        assert_eq!((other.read(), other.is_of_another(), file.is_of_another()), (None, true, false));
        fs::write(file.path(), b"{\"key\": \"plan and").unwrap();
        assert_eq!(file.read(), None);
        fs::write(file.path().with_extension("unfinished"), b"{").unwrap();
        file.remove().unwrap();
        file.remove().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
