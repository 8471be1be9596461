//! `.npy`: an array of tokens as NumPy writes it. Python objects, which are pickles, are never read.

use std::borrow::Cow;

use super::super::CalibrationDataError;
use super::super::document::Sink;
use super::super::files::{DataFile, Reading};
use super::integers::{Integer, Tokens};
use kvant_container::MappedFile;

/// The magic of a file.
const MAGIC: &[u8] = b"\x93NUMPY";
/// The longest header that is read; NumPy itself refuses longer ones unless told otherwise.
const MAX_HEADER: usize = 10_000;
/// The maximum size of an array in Fortran order, which is transposed in memory.
const MAX_TURNED: usize = 1 << 28;

/// Hands out the rows of an array of two dimensions, or the whole of one.
pub(in super::super) fn read(
    file: &DataFile,
    reading: &Reading<'_>,
    sink: &mut Sink<'_>,
) -> Result<(), CalibrationDataError> {
    let map = MappedFile::open(&file.path)?;
    let damaged = |message: &str| CalibrationDataError::damaged(&file.path, message);
    let (header, bytes) = split(&map).ok_or_else(|| damaged("no array of NumPy begins like this"))?;
    let Header { descr, fortran_order, shape } =
        parse(header).ok_or_else(|| damaged("the header is not understood"))?;
    let integer = integer(&descr).ok_or_else(|| {
        let pickles = if descr.contains('O') { "; Python objects are never read" } else { "" };
        CalibrationDataError::unsupported(
            &file.path,
            format!("elements of type {descr:?} are not tokens: save an array of integers{pickles}"),
        )
    })?;
    let size = shape.iter().try_fold(integer.width, |size, &length| size.checked_mul(length));
    if size != Some(bytes.len()) {
        return Err(damaged("its length is not that of the shape it states"));
    }
    let rows = match shape[..] {
        [rows, columns] if fortran_order && bytes.len() > MAX_TURNED => {
            let message =
                format!("an array of {rows} by {columns} in Fortran order; save numpy.ascontiguousarray(array)");
            return Err(CalibrationDataError::unsupported(&file.path, message));
        }
        [rows, columns] if fortran_order && !bytes.is_empty() => {
            Cow::Owned(transposed_matrix(bytes, integer.width, rows, columns))
        }
        _ => Cow::Borrowed(bytes),
    };
    Tokens { integer, shape: &shape, bytes: &rows, mask: None }.hand_out(file, reading, sink)
}

/// The rows of a matrix whose columns follow each other.
fn transposed_matrix(columns: &[u8], width: usize, rows: usize, count: usize) -> Vec<u8> {
    let places = (0..rows).flat_map(|row| (0..count).map(move |column| (column * rows + row) * width));
    places.flat_map(|at| columns[at..at + width].iter().copied()).collect()
}

/// The header's text and the elements; see the format's description in NumPy's `lib.format`.
fn split(file: &[u8]) -> Option<(&str, &[u8])> {
    let rest = file.strip_prefix(MAGIC)?;
    let (version, rest) = rest.split_first_chunk::<2>()?;
    let (length, rest) = match version {
        [1, _] => rest.split_first_chunk().map(|(length, rest)| (u16::from_le_bytes(*length).into(), rest))?,
        [2 | 3, _] => rest.split_first_chunk().map(|(length, rest)| (u32::from_le_bytes(*length), rest))?,
        _ => return None,
    };
    let length = usize::try_from(length).ok().filter(|&length| length <= MAX_HEADER)?;
    let (header, elements) = rest.split_at_checked(length)?;
    Some((std::str::from_utf8(header).ok()?, elements))
}

/// The parsed header.
#[derive(Debug, PartialEq)]
struct Header {
    descr: String,
    fortran_order: bool,
    shape: Vec<usize>,
}

/// The three entries of a header, which is the text of a Python dictionary.
fn parse(header: &str) -> Option<Header> {
    let value = |key: &str| Some(header.split_once(&format!("'{key}':"))?.1.trim_start());
    let fortran_order = value("fortran_order")?.starts_with("True");
    let (shape, _) = value("shape")?.strip_prefix('(')?.split_once(')')?;
    let lengths = shape.split(',').map(str::trim).filter(|length| !length.is_empty());
    let shape = lengths.map(|length| length.parse().ok()).collect::<Option<_>>()?;
    // A structured type is a list instead of a text.
    let descr = value("descr")?;
    let descr = match descr.strip_prefix('\'') {
        Some(text) => text.split_once('\'')?.0,
        None => descr.split_once(']')?.0,
    };
    Some(Header { descr: descr.to_owned(), fortran_order, shape })
}

/// The integer that a type code such as `<i8` names.
fn integer(descr: &str) -> Option<Integer> {
    let (is_big_endian, kind) = match descr.split_at_checked(1)? {
        (">", kind) => (true, kind),
        ("<" | "|", kind) => (false, kind),
        _ => return None,
    };
    let (is_signed, width) = match kind.split_at_checked(1)? {
        ("i", width) => (true, width),
        ("u", width) => (false, width),
        _ => return None,
    };
    let width = width.parse().ok().filter(|width| [1, 2, 4, 8].contains(width))?;
    Some(Integer { width, is_signed, is_big_endian })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn npy_headers_are_parsed() {
        let header = parse("{'descr': '<i8', 'fortran_order': False, 'shape': (3, 4), }").unwrap();
        assert_eq!(header, Header { descr: "<i8".into(), fortran_order: false, shape: vec![3, 4] });
        assert_eq!(parse("{'shape': (5,), 'fortran_order': True, 'descr': '|u1'}").unwrap().shape, [5]);
        for broken in ["", "{'descr': '<i8'}", "{'descr': '<i8', 'fortran_order': False, 'shape': (3, x)}"] {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn only_integer_arrays_are_tokens() {
        assert_eq!(integer("<i4"), Some(Integer { width: 4, is_signed: true, is_big_endian: false }));
        assert_eq!(integer(">u2"), Some(Integer { width: 2, is_signed: false, is_big_endian: true }));
        for other in ["<f4", "|O", "<i3", "i4", "<", "", "<u16", "<M8[ns]", "é8"] {
            assert_eq!(integer(other), None, "{other}");
        }
    }
}
