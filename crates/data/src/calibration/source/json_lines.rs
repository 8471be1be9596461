//! `.jsonl`, `.ndjson`: a row of JSON on each line. Blank lines are no rows; a line that cannot be read is skipped.

use super::super::CalibrationDataError;
use super::super::document::{RowSink, Skip};
use super::super::files::{DataFile, Reading};
use super::super::stream;
use super::MAX_ROW;
use kvant_container::python_json;
use serde_json::Value;
use std::io::{self, BufRead};

/// Hands out the rows with their fields.
pub(in super::super) fn rows(
    file: &DataFile,
    reading: &Reading<'_>,
    sink: &mut RowSink<'_>,
) -> Result<(), CalibrationDataError> {
    let unreadable = |cause| stream::failure(file, reading.max_bytes, cause);
    let (mut stream, mut line) = (stream::open(file, reading.max_bytes)?, Vec::new());
    stream::skip_mark(&mut stream).map_err(unreadable)?;
    while let Some(fits) = next_filled(&mut stream, &mut line).map_err(unreadable)? {
        let row = if fits { row(&line) } else { Err(Skip::TooLarge) };
        if sink(row)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Returns whether a document is rows on lines: its first line is JSON by itself, and another follows.
pub(super) fn has_several(file: &DataFile, reading: &Reading<'_>) -> Result<bool, CalibrationDataError> {
    let mut stream = stream::open(file, reading.max_bytes)?;
    let mut line = Vec::new();
    let mut first_two = || -> io::Result<bool> {
        stream::skip_mark(&mut stream)?;
        let is_json = next_filled(&mut stream, &mut line)? == Some(true) && python_json::parse(&line).is_ok();
        Ok(is_json && next_filled(&mut stream, &mut line)?.is_some())
    };
    first_two().map_err(|cause| stream::failure(file, reading.max_bytes, cause))
}

fn row(line: &[u8]) -> Result<Value, Skip> {
    if std::str::from_utf8(line).is_err() {
        return Err(Skip::NotUtf8);
    }
    python_json::parse(line).map_err(|_| Skip::NotJson)
}

/// [`next_line`], blank ones left out.
fn next_filled(stream: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    loop {
        match next_line(stream, line)? {
            Some(true) if line.trim_ascii().is_empty() => {}
            found => return Ok(found),
        }
    }
}

/// Reads a line without its end into `line`; `None` at the end of the stream. Of a line larger than a row may be nothing is
/// kept, and it is `false`.
fn next_line(stream: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    line.clear();
    let mut length = 0;
    loop {
        let buffer = stream.fill_buf()?;
        if buffer.is_empty() {
            return Ok((length > 0).then_some(length <= MAX_ROW));
        }
        let end = buffer.iter().position(|&byte| byte == b'\n');
        let taken = end.unwrap_or(buffer.len());
        length += taken;
        match length <= MAX_ROW {
            true => line.extend(&buffer[..taken]),
            false => line.clear(),
        }
        stream.consume(end.map_or(taken, |end| end + 1));
        if end.is_some() {
            return Ok(Some(length <= MAX_ROW));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Vec<(Vec<u8>, bool)> {
        let (mut stream, mut line, mut found) = (io::BufReader::with_capacity(7, text), Vec::new(), Vec::new());
        while let Some(fits) = next_line(&mut stream, &mut line).unwrap() {
            found.push((line.clone(), fits));
        }
        found
    }

    #[test]
    fn lines_may_be_empty_or_unterminated() {
        let expected = [&b"one two three"[..], b"", b"four"].map(|line| (line.to_vec(), true));
        assert_eq!(lines(b"one two three\n\nfour"), expected);
        assert_eq!(lines(b""), []);
    }

    #[test]
    fn oversized_line_is_skipped_without_being_kept() {
        let text = [&vec![b'x'; MAX_ROW + 1][..], b"\nshort\n"].concat();
        assert_eq!(lines(&text), [(Vec::new(), false), (b"short".to_vec(), true)]);
    }
}
