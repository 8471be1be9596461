//! Replaces the decoders of pictures in builds without them: files are refused.

use std::path::Path;

use crate::error::SampleError;

/// The memory of a decoded picture, in bytes.
pub const MOST_MEMORY: u64 = 1 << 30;

/// A decoded picture. Builds without decoders have none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Red, green and blue of every pixel, row by row from the top.
    pub pixels: Vec<u8>,
}

/// Refuses the file.
///
/// # Errors
/// Always.
pub fn picture_size(file: &Path) -> Result<[usize; 2], SampleError> {
    Err(SampleError::NotBuilt { file: file.to_path_buf(), feature: "images" })
}

/// Refuses the file.
///
/// # Errors
/// Always.
pub fn small_jpeg(file: &Path, _side: u32) -> Result<Vec<u8>, SampleError> {
    Err(SampleError::NotBuilt { file: file.to_path_buf(), feature: "images" })
}

/// Refuses the file.
///
/// # Errors
/// Always.
pub fn decode(file: &Path) -> Result<Picture, SampleError> {
    Err(SampleError::NotBuilt { file: file.to_path_buf(), feature: "images" })
}
