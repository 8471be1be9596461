//! The header of numpy's `.npy` files: type, order and shape. The values follow it as plain bytes.
//!
//! Format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>. The header is a Python dictionary of
//! three known keys; it is scanned for these, never evaluated. Objects (pickles) are refused.

use kvant_container::onnx::{DataType, byte_len};

const MAGIC: &[u8] = b"\x93NUMPY";
/// Numpy writes headers of 128 bytes; structured types, which are refused, have longer ones.
const LONGEST_HEADER: usize = 1 << 16;

/// The parsed header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NpyHeader {
    /// Bytes before the values.
    pub len: usize,
    pub data_type: DataType,
    pub shape: Vec<usize>,
    /// Whether the first index runs fastest, as in Fortran, where that makes a difference.
    pub column_major: bool,
    /// Bytes of all values.
    pub size: usize,
}

/// The reason that a header was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NpyProblem {
    Invalid(String),
    Unsupported(String),
}

impl NpyHeader {
    /// Number of bytes to read before [`parse`](Self::parse) can be called, from the first 12.
    pub fn needed(start: &[u8]) -> Result<usize, NpyProblem> {
        let invalid = |problem: &str| NpyProblem::Invalid(problem.to_owned());
        let Some(rest) = start.strip_prefix(MAGIC) else {
            return Err(invalid("not an .npy file: it does not begin as one"));
        };
        let (prefix, len) = match rest {
            [1, _, a, b, ..] => (10, usize::from(u16::from_le_bytes([*a, *b]))),
            [2 | 3, _, a, b, c, d] => (12, u32::from_le_bytes([*a, *b, *c, *d]) as usize),
            _ => return Err(NpyProblem::Unsupported("a version of the .npy format that is not known".to_owned())),
        };
        match len <= LONGEST_HEADER {
            true => Ok(prefix + len),
            false => Err(invalid("a header of more than 64 KiB")),
        }
    }

    /// Parses a header of the [needed](Self::needed) length.
    pub fn parse(bytes: &[u8]) -> Result<Self, NpyProblem> {
        let prefix = if bytes.get(MAGIC.len()) == Some(&1) { 10 } else { 12 };
        let text = bytes.get(prefix..).and_then(|b| std::str::from_utf8(b).ok());
        let text = text.ok_or_else(|| NpyProblem::Invalid("a header that is not text".to_owned()))?;
        let data_type = element_type(value_of(text, "descr")?)?;
        let column_major = match value_of(text, "fortran_order")? {
            order if order.starts_with("False") => false,
            order if order.starts_with("True") => true,
            _ => return Err(NpyProblem::Invalid("an order that is neither True nor False".to_owned())),
        };
        let shape = shape(value_of(text, "shape")?)?;
        let column_major = column_major && shape.iter().filter(|&&size| size != 1).count() > 1;
        let elements = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d as u64));
        let size = elements.and_then(|n| byte_len(data_type, n));
        let size = size.ok_or_else(|| NpyProblem::Invalid(format!("the shape {shape:?} is larger than memory")))?;
        Ok(Self { len: bytes.len(), data_type, shape, column_major, size })
    }
}

/// The text after a key of the dictionary.
fn value_of<'t>(text: &'t str, key: &str) -> Result<&'t str, NpyProblem> {
    let quoted = [format!("'{key}':"), format!("\"{key}\":")];
    let found = quoted.iter().find_map(|k| text.split_once(k.as_str()));
    found.map(|(_, value)| value.trim_start()).ok_or_else(|| NpyProblem::Invalid(format!("the header has no `{key}`")))
}

fn element_type(value: &str) -> Result<DataType, NpyProblem> {
    let unsupported = |what: &str| Err(NpyProblem::Unsupported(format!("elements of type {what}")));
    let Some(quote) = value.chars().next().filter(|c| matches!(c, '\'' | '"')) else {
        return unsupported("with several fields");
    };
    let descr = value[1..].split(quote).next().unwrap_or_default();
    Ok(match descr {
        "<f4" => DataType::FLOAT,
        "<f8" => DataType::DOUBLE,
        "<f2" => DataType::FLOAT16,
        "<i8" => DataType::INT64,
        "<i4" => DataType::INT32,
        "<i2" => DataType::INT16,
        "|i1" => DataType::INT8,
        "<u8" => DataType::UINT64,
        "<u4" => DataType::UINT32,
        "<u2" => DataType::UINT16,
        "|u1" => DataType::UINT8,
        "|b1" => DataType::BOOL,
        other => return unsupported(&format!("`{}`", other.escape_default())),
    })
}

fn shape(value: &str) -> Result<Vec<usize>, NpyProblem> {
    let inside = value.strip_prefix('(').and_then(|v| v.split_once(')')).map(|(inside, _)| inside);
    let sizes = inside.and_then(|inside| {
        let parts = inside.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| part.parse().ok()).collect::<Option<Vec<usize>>>()
    });
    sizes
        .filter(|s| s.len() <= 32)
        .ok_or_else(|| NpyProblem::Invalid("a shape that is not a tuple of sizes".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dictionary: &str) -> Vec<u8> {
        let mut bytes = [MAGIC, &[1, 0], &(dictionary.len() as u16).to_le_bytes()].concat();
        bytes.extend(dictionary.as_bytes());
        bytes
    }

    fn parsed(dictionary: &str) -> Result<NpyHeader, NpyProblem> {
        let bytes = file(dictionary);
        assert_eq!(NpyHeader::needed(&bytes[..12]), Ok(bytes.len()));
        NpyHeader::parse(&bytes)
    }

    #[test]
    fn numpy_headers_are_parsed() {
        let header = parsed("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n").unwrap();
        assert_eq!((header.data_type, &header.shape[..], header.size), (DataType::FLOAT, &[2, 3][..], 24));
        let scalar = parsed("{'descr': '|b1', 'fortran_order': False, 'shape': (), }").unwrap();
        assert_eq!((scalar.data_type, &scalar.shape[..], scalar.size), (DataType::BOOL, &[][..], 1));
        let vector = parsed("{'descr': '<i8', 'fortran_order': False, 'shape': (5,), }").unwrap();
        assert_eq!(vector.shape, [5]);
        let order = |shape: &str| parsed(&format!("{{'descr': '<f4', 'fortran_order': True, 'shape': {shape}, }}"));
        assert!(order("(2, 3)").unwrap().column_major && !order("(1, 3)").unwrap().column_major);
    }

    #[test]
    fn unsupported_npy_arrays_are_refused() {
        let unsupported = [
            "{'descr': '|O', 'fortran_order': False, 'shape': (2,), }",
            "{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }",
        ];
        for text in unsupported {
            assert!(matches!(parsed(text), Err(NpyProblem::Unsupported(_))), "{text}");
        }
        let invalid = [
            "{'descr': '<f4', 'fortran_order': False, }",
            "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2, 2), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4294967296), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': 3",
        ];
        for text in invalid {
            assert!(matches!(parsed(text), Err(NpyProblem::Invalid(_))), "{text}");
        }
        assert!(NpyHeader::needed(b"PK\x03\x04        ").is_err());
        assert!(NpyHeader::needed(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").is_err());
    }
}
