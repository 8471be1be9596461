//! Tokens as integers of several widths in a row-major array of one or two dimensions.

use super::super::CalibrationDataError;
use super::super::document::{Document, Row, Sink};
use super::super::files::{DataFile, Reading};

/// The storage of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Integer {
    /// Its bytes: 1, 2, 4 or 8.
    pub width: usize,
    /// Whether it has a sign.
    pub is_signed: bool,
    /// Whether its most significant byte comes first.
    pub is_big_endian: bool,
}

impl Integer {
    /// The value of `width` bytes; unsigned ones beyond the signed range, which no token is, are the largest of it.
    fn value(self, bytes: &[u8]) -> i64 {
        let push = |value: u64, &byte: &u8| value << 8 | u64::from(byte);
        let value = if self.is_big_endian { bytes.iter().fold(0, push) } else { bytes.iter().rev().fold(0, push) };
        let unused = 64 - 8 * self.width as u32;
        match self.is_signed {
            true => (value << unused) as i64 >> unused,
            false => i64::try_from(value).unwrap_or(i64::MAX),
        }
    }

    /// The values of an array.
    pub fn values(self, bytes: &[u8]) -> impl Iterator<Item = i64> {
        bytes.chunks_exact(self.width).map(move |bytes| self.value(bytes))
    }
}

/// An array of tokens.
pub(super) struct Tokens<'a> {
    pub integer: Integer,
    pub shape: &'a [usize],
    pub bytes: &'a [u8],
    /// Of the same shape: which tokens count, where not all do.
    pub mask: Option<(Integer, &'a [u8])>,
}

impl Tokens<'_> {
    /// Hands out an array of one dimension as a document and one of two as rows.
    pub fn hand_out(
        &self,
        file: &DataFile,
        reading: &Reading<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), CalibrationDataError> {
        match *self.shape {
            [length] => {
                let most = usize::try_from(reading.max_document).unwrap_or(usize::MAX);
                let document = self.part(0, length.min(most));
                sink(Row::Whole { document, cut: length > most }).map(drop)
            }
            [rows, length] => self.rows(rows, length, sink),
            _ => {
                let what = format!("tokens of {} dimensions, where one or two are read", self.shape.len());
                Err(CalibrationDataError::unsupported(&file.path, what))
            }
        }
    }

    fn rows(&self, rows: usize, length: usize, sink: &mut Sink<'_>) -> Result<(), CalibrationDataError> {
        // Rows of nothing take no bytes, so their number is not bounded by the file.
        let rows = if length == 0 { rows.min(1) } else { rows };
        for row in 0..rows {
            if sink(Row::Record(self.part(row * length, length)))?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Some tokens in a row, those that do not count left out.
    fn part(&self, start: usize, length: usize) -> Document {
        let of = |integer: Integer, bytes: &[u8]| -> Vec<i64> {
            integer.values(&bytes[start * integer.width..(start + length) * integer.width]).collect()
        };
        let mut tokens = of(self.integer, self.bytes);
        if let Some((integer, bytes)) = self.mask {
            let mut counts = of(integer, bytes).into_iter();
            tokens.retain(|_| counts.next() != Some(0));
        }
        Document::Tokens(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_width_are_read() {
        let integer = |width, is_signed, is_big_endian| Integer { width, is_signed, is_big_endian };
        let read = |integer: Integer, bytes: &[u8]| integer.values(bytes).collect::<Vec<_>>();
        assert_eq!(read(integer(1, true, false), &[0xFF, 1]), [-1, 1]);
        assert_eq!(read(integer(2, false, false), &[0xFF, 0xFE]), [0xFEFF]);
        assert_eq!(read(integer(2, true, true), &[0xFF, 0xFE]), [-2]);
        assert_eq!(read(integer(4, false, true), &[0, 1, 0, 2]), [0x1_0002]);
        assert_eq!(read(integer(8, true, false), &(-100_i64).to_le_bytes()), [-100]);
        assert_eq!(read(integer(8, false, false), &u64::MAX.to_le_bytes()), [i64::MAX]);
    }
}
