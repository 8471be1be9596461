//! The formats of calibration data, one file each: from a file to rows.

pub(super) mod array;
mod integers;
pub(super) mod json;
pub(super) mod json_lines;
mod json_list;
#[cfg(feature = "parquet")]
pub(super) mod parquet;
#[cfg(not(feature = "parquet"))]
#[path = "no_parquet.rs"]
pub(super) mod parquet;
pub(super) mod tensors;
pub(super) mod text;

/// The largest row, in bytes; no text of use for calibration is longer.
const MAX_ROW: usize = 16 << 20;
