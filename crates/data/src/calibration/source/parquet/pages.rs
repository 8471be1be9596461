//! The pages of a column, taken from the mapped file: sizes are checked before memory is taken for them, and a row that never
//! ends is stopped.

use super::compression::decompress;
use super::page_header::PageHeader;
use ::parquet::basic::{Compression, Encoding};
use ::parquet::bloom_filter::Sbbf;
use ::parquet::column::page::{Page, PageMetadata, PageReader};
use ::parquet::errors::{ParquetError, Result};
use ::parquet::file::metadata::RowGroupMetaData;
use ::parquet::file::reader::RowGroupReader;
use ::parquet::record::reader::RowIter;
use ::parquet::schema::types::Type;
use kvant_container::MappedFile;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The largest page, in bytes; writers make pages of a megabyte.
const MAX_PAGE: usize = 128 << 20;
/// The most values that one row may take from a column, and a page may hold.
const MAX_VALUES: u64 = 1 << 22;
/// The encodings that are read. Those of differences between texts are not: their decoders trust sizes in the file.
pub(super) const ENCODINGS: &[Encoding] = &[
    Encoding::PLAIN,
    Encoding::PLAIN_DICTIONARY,
    Encoding::RLE_DICTIONARY,
    Encoding::RLE,
    Encoding::DELTA_BINARY_PACKED,
];

/// The pages read so far.
pub(super) struct Meter {
    bytes_left: AtomicU64,
    values_of_row: AtomicU64,
}

impl Meter {
    /// Reserves bytes for reading.
    pub(super) fn new(max_bytes: u64) -> Meter {
        Meter { bytes_left: max_bytes.into(), values_of_row: 0.into() }
    }

    /// Returns whether reading ended because more bytes would have been read.
    pub(super) fn is_exhausted(&self) -> bool {
        self.bytes_left.load(Ordering::Relaxed) == 0
    }

    /// Says that a row is complete.
    pub(super) fn end_row(&self) {
        self.values_of_row.store(0, Ordering::Relaxed);
    }

    /// Asks for a page.
    fn take(&self, bytes: usize, values: u64) -> Result<()> {
        let left = self.bytes_left.load(Ordering::Relaxed).saturating_sub(bytes as u64);
        self.bytes_left.store(left, Ordering::Relaxed);
        let of_row = self.values_of_row.fetch_add(values, Ordering::Relaxed) + values;
        match left {
            0 => Err(general("more than the limit")),
            _ if of_row > MAX_VALUES => Err(general("a row is too large")),
            _ => Ok(()),
        }
    }
}

/// Rows that were written together.
pub(super) struct Group<'a> {
    pub metadata: &'a RowGroupMetaData,
    pub map: Arc<MappedFile>,
    pub meter: Arc<Meter>,
}

impl RowGroupReader for Group<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.metadata
    }

    fn num_columns(&self) -> usize {
        self.metadata.num_columns()
    }

    fn get_column_page_reader(&self, column: usize) -> Result<Box<dyn PageReader>> {
        let column = self.metadata.column(column);
        let (start, length) = column.byte_range();
        let end = start.checked_add(length).filter(|&end| end <= self.map.len() as u64);
        let end = end.ok_or_else(|| general("a column is outside the file"))?;
        Ok(Box::new(Pages {
            map: self.map.clone(),
            at: start as usize,
            end: end as usize,
            values_left: column.num_values().max(0) as u64,
            compression: column.compression(),
            meter: self.meter.clone(),
        }))
    }

    fn get_column_bloom_filter(&self, _: usize) -> Option<&Sbbf> {
        None
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

/// The pages of one column of a group.
struct Pages {
    map: Arc<MappedFile>,
    at: usize,
    end: usize,
    values_left: u64,
    compression: Compression,
    meter: Arc<Meter>,
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        while self.values_left > 0 {
            let (header, length) =
                PageHeader::parse(&self.map[self.at..self.end]).ok_or_else(|| general("a header is not understood"))?;
            let [uncompressed, compressed] = [size(header.own[2])?, size(header.own[3])?];
            let start = self.at + length;
            let end = start.checked_add(compressed).filter(|&end| end <= self.end);
            self.at = end.ok_or_else(|| general("a page is outside its column"))?;
            let body = start..self.at;
            if let Some(page) = self.page(&header, body, uncompressed)? {
                return Ok(Some(page));
            }
        }
        Ok(None)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        Err(general("pages are read in order"))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        Err(general("pages are read in order"))
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        // Only skipping depends on it.
        Ok(self.values_left == 0)
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Result<Page>> {
        self.get_next_page().transpose()
    }
}

impl Pages {
    /// The page with a header; `None` for a kind that holds no values. Numbers of kinds and fields are those of
    /// `parquet.thrift`.
    fn page(&mut self, header: &PageHeader, body: Range<usize>, size: usize) -> Result<Option<Page>> {
        let make = match header.own[1] {
            Some(0) => data,
            Some(2) => dictionary,
            Some(3) => data_v2,
            _ => return Ok(None),
        };
        let values = number(header, 1)?;
        self.meter.take(size, values.into())?;
        let page = make(header, &self.map[body], self.compression, size)?;
        if page.is_data_page() {
            self.values_left = self.values_left.saturating_sub(values.into());
        }
        Ok(Some(page))
    }
}

fn data(header: &PageHeader, body: &[u8], compression: Compression, size: usize) -> Result<Page> {
    Ok(Page::DataPage {
        buf: decompress(compression, body, size)?.into(),
        num_values: number(header, 1)?,
        encoding: encoding(header, 2)?,
        def_level_encoding: encoding(header, 3)?,
        rep_level_encoding: encoding(header, 4)?,
        statistics: None,
    })
}

fn dictionary(header: &PageHeader, body: &[u8], compression: Compression, size: usize) -> Result<Page> {
    let (num_values, encoding) = (number(header, 1)?, encoding(header, 2)?);
    // A decoder takes memory for all values at once; texts and tokens take at least four bytes each.
    if num_values as usize > size / 4 {
        return Err(general("a dictionary is shorter than it states"));
    }
    let buf = decompress(compression, body, size)?.into();
    Ok(Page::DictionaryPage { buf, num_values, encoding, is_sorted: false })
}

/// Its levels stand before the values and are never compressed.
fn data_v2(header: &PageHeader, body: &[u8], compression: Compression, size: usize) -> Result<Page> {
    let (definition, repetition) = (number(header, 5)?, number(header, 6)?);
    let length = (definition as usize).saturating_add(repetition as usize);
    let (levels, values) = body.split_at_checked(length).ok_or_else(|| general("levels are too long"))?;
    let size = size.checked_sub(length).ok_or_else(|| general("levels are too long"))?;
    // A page that does not say whether it is compressed is.
    let compression = if header.kind[7] == Some(0) { Compression::UNCOMPRESSED } else { compression };
    let values = if size == 0 { Vec::new() } else { decompress(compression, values, size)? };
    Ok(Page::DataPageV2 {
        buf: [levels, &values].concat().into(),
        num_values: number(header, 1)?,
        encoding: encoding(header, 4)?,
        num_nulls: number(header, 2)?,
        num_rows: number(header, 3)?,
        def_levels_byte_len: definition,
        rep_levels_byte_len: repetition,
        is_compressed: false,
        statistics: None,
    })
}

fn number(header: &PageHeader, field: usize) -> Result<u32> {
    header.kind[field].and_then(|n| u32::try_from(n).ok()).ok_or_else(|| general("a number in a header is wrong"))
}

fn encoding(header: &PageHeader, field: usize) -> Result<Encoding> {
    let found = ENCODINGS.iter().find(|&&encoding| header.kind[field] == Some(encoding as i64));
    found.copied().ok_or_else(|| general("an encoding is not read"))
}

fn size(field: Option<i64>) -> Result<usize> {
    let size = field.and_then(|size| usize::try_from(size).ok()).filter(|&size| size <= MAX_PAGE);
    size.ok_or_else(|| general("a page is too large"))
}

fn general(message: &str) -> ParquetError {
    ParquetError::General(message.to_owned())
}
