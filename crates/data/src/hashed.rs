//! The hash of files of data, by which an output says what it was calibrated on.

use kvant_container::MappedFile;
use kvant_samples::SampleError;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// The bytes of some files, and their hash.
pub(crate) struct HashedFiles {
    /// The bytes of all files.
    pub(crate) bytes: u64,
    /// The XXH3 hash, 128 bits in hexadecimal digits, of the names below `path` and of the bytes of all files.
    pub(crate) xxh3_128: String,
}

impl HashedFiles {
    /// Reads the files of a path.
    pub(crate) fn of(path: &Path, files: &[PathBuf]) -> Result<HashedFiles, SampleError> {
        let (mut hash, mut bytes) = (Xxh3::new(), 0);
        for file in files {
            let contents = MappedFile::open(file).map_err(|e| SampleError::io(file, e))?;
            hash.update(file.strip_prefix(path).unwrap_or(Path::new("")).as_os_str().as_encoded_bytes());
            hash.update(&contents);
            bytes += contents.len() as u64;
        }
        Ok(HashedFiles { bytes, xxh3_128: format!("{:032x}", hash.digest128()) })
    }
}
