//! A file of ranges, recognized by its contents.

use std::path::{Path, PathBuf};

use super::error::RangesError;
use super::{Contents, FORMATS, RangeTable};

/// The ranges of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct RangesFile {
    /// The file.
    pub path: PathBuf,
    /// The name of its format.
    pub format: &'static str,
    /// The XXH3 hash, 128 bits in hexadecimal digits, of all its bytes.
    pub xxh3_128: String,
    /// Its tensors.
    pub table: RangeTable,
}

impl RangesFile {
    /// Reads the contents of a file, whose hash the caller knows.
    ///
    /// # Errors
    /// *Invalid* for other files, and for numbers that are no ranges, with the tensor; *unsupported* for forms of the formats that have no
    /// ranges by the names of tensors.
    pub fn parse(path: &Path, bytes: &[u8], xxh3_128: String) -> Result<Self, RangesError> {
        let contents = Contents::of(bytes).map_err(|problem| problem.of_file(path))?;
        let format = FORMATS.iter().find(|format| (format.is_of)(&contents));
        let format = format.ok_or_else(|| RangesError::Unknown { file: path.to_owned() })?;
        let table = (format.read)(&contents).map_err(|problem| problem.of_file(path))?;
        if table.is_empty() {
            let problem = "it has no tensors".to_owned();
            return Err(RangesError::Invalid { file: path.to_owned(), problem });
        }
        Ok(Self { path: path.to_owned(), format: format.name, xxh3_128, table })
    }
}
