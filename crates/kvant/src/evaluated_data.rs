//! The file that a model was evaluated on, so that results of different texts are not compared.

use kvant_container::MappedFile;
use serde::Serialize;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// A file of data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EvaluatedData {
    /// Its name, without directories.
    pub name: String,
    /// The XXH3 hash, 128 bits in hexadecimal digits, of all its bytes.
    pub xxh3_128: String,
}

impl EvaluatedData {
    /// Reads a file; `None` for folders, and for files that are gone.
    pub(crate) fn of(path: &Path) -> Option<EvaluatedData> {
        let contents = MappedFile::open(path).ok()?;
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some(EvaluatedData { name, xxh3_128: format!("{:032x}", xxh3_128(&contents)) })
    }
}
