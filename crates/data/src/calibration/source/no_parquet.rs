//! Replaces the reader of `.parquet` in builds without it: such files are refused.

use super::super::CalibrationDataError;
use super::super::document::RowSink;
use super::super::files::{DataFile, Reading};

/// Refuses the file.
pub(in super::super) fn rows(
    file: &DataFile,
    _reading: &Reading<'_>,
    _sink: &mut RowSink<'_>,
) -> Result<(), CalibrationDataError> {
    Err(CalibrationDataError::NotBuilt { file: file.path.clone(), feature: "parquet" })
}
