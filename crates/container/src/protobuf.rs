//! The wire format of protobuf: fields with their numbers, as they follow one another in a message's bytes. Which fields a
//! message has, and what they mean, is known elsewhere.
//!
//! Source: <https://protobuf.dev/programming-guides/encoding/>.

use std::io::{self, Write};

/// A defect in the bytes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// They end within a field, or a field does not end where they do.
    #[error("Unexpected EOF")]
    Truncated,
    /// No field begins like this.
    #[error("Incorrect tag")]
    Tag,
    /// A number of more than 64 bits.
    #[error("Incorrect varint")]
    Varint,
    /// A number outside of the field's type.
    #[error("Value too large for i32: {0}")]
    TooLarge(i64),
    /// Text that is not UTF-8.
    #[error("UTF-8 decode error")]
    Utf8,
    /// Messages in messages, deeper than is read.
    #[error("Over recursion limit")]
    Depth,
}

/// The encoded size of a value in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Up to ten, of seven bits each.
    Varint = 0,
    /// Eight.
    Fixed64 = 1,
    /// As many as a number before them says.
    Bytes = 2,
    /// Four.
    Fixed32 = 5,
}

/// A value of a message, as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire<'a> {
    /// A number.
    Varint(u64),
    /// Eight bytes.
    Fixed64([u8; 8]),
    /// Text, bytes, a message, or numbers after one another.
    Bytes(&'a [u8]),
    /// Four bytes.
    Fixed32([u8; 4]),
}

impl<'a> Wire<'a> {
    /// The value that bytes begin with, which are then those behind it.
    pub fn take(kind: Kind, bytes: &mut &'a [u8]) -> Result<Wire<'a>, WireError> {
        Ok(match kind {
            Kind::Varint => Wire::Varint(varint(bytes)?),
            Kind::Fixed64 => Wire::Fixed64(chunk(bytes)?),
            Kind::Fixed32 => Wire::Fixed32(chunk(bytes)?),
            Kind::Bytes => {
                let length = usize::try_from(varint(bytes)?).map_err(|_| WireError::Truncated)?;
                let (value, rest) = bytes.split_at_checked(length).ok_or(WireError::Truncated)?;
                *bytes = rest;
                Wire::Bytes(value)
            }
        })
    }

    /// The kind of value.
    pub fn kind(&self) -> Kind {
        match self {
            Wire::Varint(_) => Kind::Varint,
            Wire::Fixed64(_) => Kind::Fixed64,
            Wire::Bytes(_) => Kind::Bytes,
            Wire::Fixed32(_) => Kind::Fixed32,
        }
    }

    /// Bytes that it takes behind its tag.
    pub fn size(&self) -> u64 {
        match self {
            Wire::Varint(value) => varint_size(*value),
            Wire::Fixed64(_) => 8,
            Wire::Bytes(bytes) => varint_size(bytes.len() as u64) + bytes.len() as u64,
            Wire::Fixed32(_) => 4,
        }
    }

    /// Writes it, without a tag.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Wire::Varint(value) => write_varint(*value, out),
            Wire::Fixed64(bytes) => out.write_all(bytes),
            Wire::Bytes(bytes) => {
                write_varint(bytes.len() as u64, out)?;
                out.write_all(bytes)
            }
            Wire::Fixed32(bytes) => out.write_all(bytes),
        }
    }
}

/// The fields of a message. Groups, which protobuf gave up, are left out.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next field's number and value; `None` at the end.
    pub fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, WireError> {
        let mut groups = 0usize;
        while !self.0.is_empty() {
            let (number, kind) = tag(&mut self.0)?;
            let kind = match kind {
                0 => Kind::Varint,
                1 => Kind::Fixed64,
                2 => Kind::Bytes,
                3 => {
                    groups += 1;
                    continue;
                }
                4 => {
                    groups = groups.checked_sub(1).ok_or(WireError::Tag)?;
                    continue;
                }
                5 => Kind::Fixed32,
                _ => return Err(WireError::Tag),
            };
            let value = Wire::take(kind, &mut self.0)?;
            if groups == 0 {
                return Ok(Some((number, value)));
            }
        }
        if groups == 0 { Ok(None) } else { Err(WireError::Truncated) }
    }
}

/// A field's number, and what kind of value follows.
fn tag(bytes: &mut &[u8]) -> Result<(u32, u32), WireError> {
    let tag = u32::try_from(varint(bytes)?).map_err(|_| WireError::Tag)?;
    if tag >> 3 == 0 { Err(WireError::Tag) } else { Ok((tag >> 3, tag & 7)) }
}

/// The number that bytes begin with, which are then those behind it.
pub fn varint(bytes: &mut &[u8]) -> Result<u64, WireError> {
    let mut value = 0;
    for at in 0..10 {
        let byte = *bytes.get(at).ok_or(WireError::Truncated)?;
        if at == 9 && byte & 0x7f > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            *bytes = &bytes[at + 1..];
            return Ok(value);
        }
    }
    Err(WireError::Varint)
}

fn chunk<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], WireError> {
    let (value, rest) = bytes.split_first_chunk().ok_or(WireError::Truncated)?;
    *bytes = rest;
    Ok(*value)
}

/// Bytes of a number.
pub fn varint_size(value: u64) -> u64 {
    u64::from((u64::BITS - (value | 1).leading_zeros()).div_ceil(7))
}

/// Writes a number.
pub fn write_varint(mut value: u64, out: &mut dyn Write) -> io::Result<()> {
    let (mut bytes, mut length) = ([0; 10], 0);
    while value >= 0x80 {
        bytes[length] = value as u8 | 0x80;
        value >>= 7;
        length += 1;
    }
    bytes[length] = value as u8;
    out.write_all(&bytes[..=length])
}

/// Writes what stands before a value.
pub fn write_tag(number: u32, kind: Kind, out: &mut dyn Write) -> io::Result<()> {
    write_varint(u64::from(number << 3 | kind as u32), out)
}

/// Bytes of what stands before a value.
pub fn tag_size(number: u32) -> u64 {
    varint_size(u64::from(number) << 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX >> 1, u64::MAX] {
            let mut bytes = Vec::new();
            write_varint(value, &mut bytes).unwrap();
            assert_eq!(bytes.len() as u64, varint_size(value));
            let mut rest = &bytes[..];
            assert_eq!(varint(&mut rest), Ok(value));
            assert!(rest.is_empty());
            assert_eq!(varint(&mut &bytes[..bytes.len() - 1]), Err(WireError::Truncated));
        }
        assert_eq!(varint(&mut &[0xff; 10][..]), Err(WireError::Varint));
    }

    #[test]
    fn protobuf_groups_are_skipped_and_broken_fields_refused() {
        // Field 1 is a group that holds a number and a group; field 2 is a number.
        let bytes = [0x0b, 0x10, 5, 0x1b, 0x1c, 0x0c, 0x10, 7];
        let mut fields = Fields(&bytes);
        assert_eq!(fields.next(), Ok(Some((2, Wire::Varint(7)))));
        assert_eq!(fields.next(), Ok(None));
        assert_eq!(Fields(&bytes[..5]).next(), Err(WireError::Truncated), "a group without an end");
        assert_eq!(Fields(&[0x0c]).next(), Err(WireError::Tag), "an end without a group");
        assert_eq!(Fields(&[0x02, 0]).next(), Err(WireError::Tag), "the number 0");
        assert_eq!(Fields(&[0x0f]).next(), Err(WireError::Tag), "a kind that does not exist");
        assert_eq!(Fields(&[0x0a, 2, 1]).next(), Err(WireError::Truncated));
        assert_eq!(Fields(&[0x0d, 2, 1, 0]).next(), Err(WireError::Truncated));
    }
}
