//! Files of text.

use super::EvaluationError;
use std::path::Path;

/// All of a file of text in UTF-8.
///
/// # Errors
///
/// Files that are unreadable or not UTF-8.
pub fn read_text(file: &Path) -> Result<String, EvaluationError> {
    let bytes = std::fs::read(file).map_err(|cause| EvaluationError::Read { file: file.to_path_buf(), cause })?;
    String::from_utf8(bytes).map_err(|error| EvaluationError::NotText {
        file: file.to_path_buf(),
        position: error.utf8_error().valid_up_to(),
    })
}
