//! `.txt`: a file that is one document.

use super::super::CalibrationDataError;
use super::super::document::{Document, Row, Sink};
use super::super::files::{DataFile, Reading};
use super::super::stream;
use std::io::Read;

/// Hands out the text, or of a very long one its beginning, up to the end of a line.
pub(in super::super) fn read(
    file: &DataFile,
    reading: &Reading<'_>,
    sink: &mut Sink<'_>,
) -> Result<(), CalibrationDataError> {
    let mut bytes = Vec::new();
    let mut whole = stream::open(file, reading.max_bytes)?;
    let beginning = stream::skip_mark(&mut whole)
        .and_then(|()| whole.take(reading.max_document.saturating_add(1)).read_to_end(&mut bytes));
    beginning.map_err(|cause| stream::failure(file, reading.max_bytes, cause))?;
    let cut = bytes.len() as u64 > reading.max_document;
    if cut {
        let end = bytes.iter().rposition(|&byte| byte == b'\n').map_or(bytes.len(), |last| last + 1);
        bytes.truncate(end);
    }
    let text = utf8(file, bytes, cut)?;
    sink(Row::Whole { document: Document::Text(text), cut }).map(drop)
}

/// The bytes as text. Where they were cut, an incomplete character at the end is the cut's fault.
fn utf8(file: &DataFile, bytes: Vec<u8>, cut: bool) -> Result<String, CalibrationDataError> {
    String::from_utf8(bytes).or_else(|error| {
        let (position, incomplete) = (error.utf8_error().valid_up_to(), error.utf8_error().error_len().is_none());
        let mut bytes = error.into_bytes();
        bytes.truncate(position);
        let not_text = CalibrationDataError::NotText { file: file.path.clone(), position };
        if cut && incomplete { String::from_utf8(bytes).map_err(|_| not_text) } else { Err(not_text) }
    })
}
