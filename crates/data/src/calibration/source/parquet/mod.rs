//! `.parquet`: columns of text, of lists of messages or of lists of tokens. The format's metadata, encodings and records are
//! the `parquet` crate's; pages are taken from the file, checked and decompressed in [`pages`].

mod compression;
mod page_header;
mod pages;
mod values;

use super::super::CalibrationDataError;
use super::super::document::RowSink;
use super::super::files::{DataFile, Reading};
use ::parquet::basic::Encoding;
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use ::parquet::record::reader::RowIter;
use ::parquet::schema::types::Type;
use kvant_container::MappedFile;
use pages::{Group, Meter};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Hands out the rows with their fields. Only the columns that can matter are read.
pub(in super::super) fn rows(
    file: &DataFile,
    reading: &Reading<'_>,
    sink: &mut RowSink<'_>,
) -> Result<(), CalibrationDataError> {
    let map = Arc::new(MappedFile::open(&file.path)?);
    let metadata = metadata(file, &map)?;
    let columns = columns(file, &metadata, reading)?;
    let meter = Arc::new(Meter::new(reading.max_bytes));
    let failed = |error: CalibrationDataError| match meter.is_exhausted() {
        true => CalibrationDataError::TooLarge { file: file.path.clone(), limit: reading.max_bytes },
        false => error,
    };
    for metadata in metadata.row_groups() {
        check(file, metadata, &columns)?;
        let group = Group { metadata, map: map.clone(), meter: meter.clone() };
        let mut rows = guarded(file, || RowIter::from_row_group(Some(columns.clone()), &group)).map_err(failed)?;
        while let Some(row) = guarded(file, || rows.next().transpose()).map_err(failed)? {
            meter.end_row();
            if sink(Ok(values::object(row)))?.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Runs code of the `parquet` crate, which panics at some damaged files.
fn guarded<T>(file: &DataFile, run: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, CalibrationDataError> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            // Without the name of the library, and without the bytes that it adds.
            let message = error.to_string();
            let message = message.strip_prefix("Parquet error: ").unwrap_or(&message);
            let message = message.split(". Bytes: [").next().unwrap_or_default();
            Err(CalibrationDataError::damaged(&file.path, message))
        }
        Err(_) => Err(CalibrationDataError::damaged(&file.path, "its parts contradict each other")),
    }
}

/// The metadata at the file's end: before its last eight bytes, the length of the metadata and `PAR1`.
fn metadata(file: &DataFile, bytes: &[u8]) -> Result<ParquetMetaData, CalibrationDataError> {
    let located = || {
        let rest = bytes.strip_prefix(b"PAR1")?.strip_suffix(b"PAR1")?;
        let (rest, length) = rest.split_last_chunk()?;
        rest.get(rest.len().checked_sub(u32::from_le_bytes(*length) as usize)?..)
    };
    let encoded =
        located().ok_or_else(|| CalibrationDataError::damaged(&file.path, "it does not end like a parquet file"))?;
    guarded(file, || ParquetMetaDataReader::decode_metadata(encoded))
}

/// The part of the schema that can matter.
fn columns(file: &DataFile, metadata: &ParquetMetaData, reading: &Reading<'_>) -> Result<Type, CalibrationDataError> {
    let all = metadata.file_metadata().schema_descr().root_schema();
    let relevant: Vec<_> = all.get_fields().iter().filter(|field| reading.reads(field.name())).cloned().collect();
    if relevant.is_empty() {
        let names: Vec<&str> = all.get_fields().iter().map(|field| field.name()).collect();
        let (file, wanted) = (file.path.clone(), reading.column.map(str::to_owned));
        return Err(CalibrationDataError::NoColumn { file, wanted, columns: names.join(", ") });
    }
    guarded(file, || Type::group_type_builder(all.name()).with_fields(relevant).build())
}

/// Refuses what is not read here, and numbers of rows that the columns cannot have.
fn check(file: &DataFile, group: &RowGroupMetaData, columns: &Type) -> Result<(), CalibrationDataError> {
    let is_read = |column: &&ColumnChunkMetaData| {
        let root = column.column_path().parts().first();
        columns.get_fields().iter().any(|field| root.is_some_and(|root| root == field.name()))
    };
    for column in group.columns().iter().filter(is_read) {
        let name = column.column_path().string();
        let is_refused = |encoding: &Encoding| !pages::ENCODINGS.contains(encoding);
        if let Some(encoding) = column.encodings().find(is_refused) {
            let what = format!("column {name} is encoded as {encoding}; write it plain or with a dictionary");
            return Err(CalibrationDataError::unsupported(&file.path, what));
        }
        if !compression::is_read(column.compression()) {
            let compression = column.compression().to_string();
            let compression = compression.split('(').next().unwrap_or_default();
            let what = format!("column {name} is compressed with {compression}; write it with snappy, gzip or zstd");
            return Err(CalibrationDataError::unsupported(&file.path, what));
        }
        if !(0..=column.num_values()).contains(&group.num_rows()) {
            return Err(CalibrationDataError::damaged(&file.path, format!("column {name} has fewer values than rows")));
        }
    }
    Ok(())
}
