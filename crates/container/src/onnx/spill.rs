//! Tensor contents made anew, kept on disk instead of in memory until they are written.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::error::Error;
use crate::mmap::MappedFile;

/// Contents from this size on go to disk; below it they stay in memory.
const SPILLED: usize = 1 << 20;

/// A temporary directory beside the output, one file per large tensor. Its files vanish with it.
///
/// The bytes handed back are slices of mapped files, so that a model's new weights are no private memory of the process.
#[derive(Debug)]
pub struct Spill {
    directory: tempfile::TempDir,
    files: AtomicU64,
}

impl Spill {
    /// Makes the temporary directory in `beside`, which must exist.
    pub fn new(beside: &Path) -> Result<Self, Error> {
        let directory = tempfile::Builder::new().prefix(".kvant-spill-").tempdir_in(beside);
        let directory = directory.map_err(|e| Error::io("create a temporary directory in", beside, None, e))?;
        Ok(Self { directory, files: AtomicU64::new(0) })
    }

    /// The same bytes, on disk if they are many.
    pub fn keep(&self, contents: Vec<u8>) -> Result<Bytes, Error> {
        if contents.len() < SPILLED {
            return Ok(contents.into());
        }
        let number = self.files.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.path().join(number.to_string());
        let written = File::create_new(&path).and_then(|mut file| file.write_all(&contents));
        written.map_err(|e| Error::io("write", &path, None, e))?;
        let mapped = MappedFile::open(&path)?;
        // The map keeps the contents; the name is no longer needed, so that nothing stays behind after a kill either.
        #[cfg(unix)]
        std::fs::remove_file(&path).map_err(|e| Error::io("remove", &path, None, e))?;
        Ok(Bytes::from_owner(mapped))
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
    fn large_contents_come_back_from_disk() {
        let beside = tempfile::tempdir().unwrap();
        let spill = Spill::new(beside.path()).unwrap();
        let large: Vec<u8> = (0..SPILLED * 2).map(|i| i as u8).collect();
        assert_eq!(spill.keep(large.clone()).unwrap(), large);
        assert_eq!(spill.keep(vec![1, 2]).unwrap(), vec![1, 2]);
    }
}
