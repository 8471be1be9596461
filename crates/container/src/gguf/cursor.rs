//! Reading numbers and strings off bytes that a stranger wrote: nothing is taken that is not there.

use crate::error::GgufError;

/// The most things that a file may count without being absurd: 2^32, more than any vocabulary or list of tensors has.
const MOST: u64 = 1 << 32;

/// Bytes, and how far they were read.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

/// A number that stands little-endian in a file.
pub(super) trait Number: Sized {
    fn read(cursor: &mut Cursor<'_>, what: &'static str) -> Result<Self, GgufError>;
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(
            impl Number for $number {
                fn read(cursor: &mut Cursor<'_>, what: &'static str) -> Result<Self, GgufError> {
                    Ok(<$number>::from_le_bytes(cursor.array(what)?))
                }
            }
        )*
    };
}

numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, position: 0 }
    }

    /// The number of bytes read.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// The number of bytes left.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.position
    }

    /// The next bytes.
    pub(super) fn take(&mut self, count: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let end = usize::try_from(count).ok().and_then(|count| self.position.checked_add(count));
        let taken = end.and_then(|end| self.bytes.get(self.position..end)).ok_or(GgufError::Truncated { what })?;
        self.position += taken.len();
        Ok(taken)
    }

    /// A number.
    pub(super) fn number<N: Number>(&mut self, what: &'static str) -> Result<N, GgufError> {
        N::read(self, what)
    }

    /// The bytes of a string.
    pub(super) fn string(&mut self, what: &'static str) -> Result<&'a [u8], GgufError> {
        let len = self.number::<u64>(what)?;
        self.take(len, what)
    }

    /// A string that must be text.
    pub(super) fn text(&mut self, what: &'static str) -> Result<String, GgufError> {
        let bytes = self.string(what)?.to_vec();
        String::from_utf8(bytes).map_err(|_| GgufError::NotText { what })
    }

    /// A count of things that take at least so many bytes each, all of which must be there.
    pub(super) fn count(&mut self, least_bytes: usize, what: &'static str) -> Result<usize, GgufError> {
        let count = self.number::<u64>(what)?;
        let (left, fits) = (self.left(), |count: &usize| *count <= self.left() / least_bytes);
        match usize::try_from(count).ok().filter(fits) {
            Some(count) => Ok(count),
            None if count <= MOST => Err(GgufError::CutShort { what, found: count, left }),
            None => Err(GgufError::Impossible { what: what.to_owned(), found: count }),
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }
}
