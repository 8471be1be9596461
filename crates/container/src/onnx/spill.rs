//! New tensor contents, kept on disk instead of in memory until they are written.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use crate::error::Error;
use crate::mmap::MappedFile;

/// Contents from this size on go to disk; below it they stay in memory.
const SPILLED: usize = 1 << 20;

/// Temporary files beside the output, one per large tensor. They have no names, so nothing is left however the process ends.
///
/// The bytes handed back are mapped files, so that a model's new weights are no private memory of the process. All work
/// that makes new weights passes here, so this is also where it checks for cancellation.
#[derive(Debug)]
pub struct Spill {
    beside: PathBuf,
    cancelled: Arc<AtomicBool>,
}

/// A map with its file: some systems remove a file without a name when it is closed.
struct Kept {
    map: MappedFile,
    _file: File,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Spill {
    /// Files on the disk of the directory `beside`, where one is made now to know that it can be.
    pub fn new(beside: &Path) -> Result<Self, Error> {
        let spill = Self { beside: beside.to_path_buf(), cancelled: Arc::default() };
        spill.file().map(|_| spill)
    }

    /// The same, stopping with [`Error::Cancelled`] once the flag is set.
    #[must_use]
    pub fn cancelled_by(self, cancelled: Arc<AtomicBool>) -> Self {
        Self { cancelled, ..self }
    }

    /// [`Error::Cancelled`] where the user asked to stop.
    pub fn check(&self) -> Result<(), Error> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// The same bytes, on disk if they are many.
    pub fn keep(&self, contents: Vec<u8>) -> Result<Bytes, Error> {
        self.check()?;
        if contents.len() < SPILLED {
            return Ok(contents.into());
        }
        let mut file = self.file()?;
        file.write_all(&contents).map_err(|e| Error::io("write a temporary file in", &self.beside, None, e))?;
        let map = MappedFile::without_name(&file, contents.len() as u64, &self.beside)?;
        Ok(Bytes::from_owner(Kept { map, _file: file }))
    }

    fn file(&self) -> Result<File, Error> {
        let made = tempfile::tempfile_in(&self.beside);
        made.map_err(|e| Error::io("create a temporary file in", &self.beside, None, e))
    }
}

/// Contents where there may be a place for them on disk: there if they are many, in memory without one.
pub fn keep(spill: Option<&Spill>, contents: Vec<u8>) -> Result<Bytes, Error> {
    match spill {
        Some(spill) => spill.keep(contents),
        None => Ok(contents.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_contents_are_spilled_and_read_back() {
        let beside = tempfile::tempdir().unwrap();
        let spill = Spill::new(beside.path()).unwrap();
        let large: Vec<u8> = (0..SPILLED * 2).map(|i| i as u8).collect();
        assert_eq!(spill.keep(large.clone()).unwrap(), large);
        assert_eq!(spill.keep(vec![1, 2]).unwrap(), vec![1, 2]);
    }

    #[test]
    fn spilled_files_have_no_name() {
        let beside = tempfile::tempdir().unwrap();
        let spill = Spill::new(beside.path()).unwrap();
        let kept = spill.keep(vec![7; SPILLED]).unwrap();
        assert_eq!(std::fs::read_dir(beside.path()).unwrap().count(), 0);
        drop(spill);
        assert!(kept.iter().all(|&byte| byte == 7));
    }

    /// The directory that a file without a name lies in is shorter than the file.
    #[test]
    fn kept_contents_are_not_taken_for_a_file_that_was_cut_short() {
        let beside = tempfile::tempdir().unwrap();
        let lost = crate::FileChanges::from_now_on();
        drop(Spill::new(beside.path()).unwrap().keep(vec![7; SPILLED]).unwrap());
        assert_eq!(lost.first_shortened(), None);
    }

    #[test]
    fn cancellation_stops_spilling() {
        let beside = tempfile::tempdir().unwrap();
        let cancelled = Arc::new(AtomicBool::new(false));
        let spill = Spill::new(beside.path()).unwrap().cancelled_by(cancelled.clone());
        assert!(spill.keep(vec![1]).is_ok());
        cancelled.store(true, Ordering::Relaxed);
        assert!(matches!(spill.keep(vec![1]), Err(Error::Cancelled)));
        assert!(Spill::new(&beside.path().join("no")).is_err());
    }
}
