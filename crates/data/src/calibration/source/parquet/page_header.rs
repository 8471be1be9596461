//! The header of a page, in the compact protocol of Thrift: only what a header holds, which is integers, Booleans, bytes and
//! structures of these.

/// The deepest structure: a header, its page's kind, the statistics.
const MAX_DEPTH: usize = 4;
/// Fields have small numbers in all structures of a header.
const FIELDS: usize = 9;

/// The page header.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PageHeader {
    /// The integers and Booleans of the header by the numbers of their fields.
    pub own: [Option<i64>; FIELDS],
    /// Those of the structure for the page's kind.
    pub kind: [Option<i64>; FIELDS],
}

impl PageHeader {
    /// Reads a header from the beginning of `bytes`, and returns its length.
    pub(super) fn parse(bytes: &[u8]) -> Option<(PageHeader, usize)> {
        let mut reader = ThriftReader { rest: bytes };
        let mut header = PageHeader::default();
        header.own = reader.structure(MAX_DEPTH, &mut |_, inner| header.kind = inner)?;
        Some((header, bytes.len() - reader.rest.len()))
    }
}

struct ThriftReader<'a> {
    rest: &'a [u8],
}

impl ThriftReader<'_> {
    /// Reads a structure. `found` is given the numbers and the integers of the structures in it.
    fn structure(
        &mut self,
        depth: usize,
        found: &mut dyn FnMut(i64, [Option<i64>; FIELDS]),
    ) -> Option<[Option<i64>; FIELDS]> {
        let (mut fields, mut id, depth) = ([None; FIELDS], 0, depth.checked_sub(1)?);
        loop {
            let start = self.byte()?;
            if start == 0 {
                return Some(fields);
            }
            id = match start >> 4 {
                0 => self.integer()?,
                step => id + i64::from(step),
            };
            let value = match start & 15 {
                1 => Some(1),
                2 => Some(0),
                3 => Some(self.byte()?.into()),
                4..=6 => Some(self.integer()?),
                8 => self.skip_bytes()?,
                12 => {
                    let inner = self.structure(depth, &mut |_, _| {})?;
                    found(id, inner);
                    None
                }
                _ => return None,
            };
            if let Some(field) = usize::try_from(id).ok().and_then(|id| fields.get_mut(id)) {
                *field = value;
            }
        }
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    /// Seven bits a byte, the least significant first.
    fn unsigned(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(value);
            }
        }
        None
    }

    /// The sign is the least significant bit.
    fn integer(&mut self) -> Option<i64> {
        let value = self.unsigned()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn skip_bytes(&mut self) -> Option<Option<i64>> {
        let length = usize::try_from(self.unsigned()?).ok()?;
        self.rest = self.rest.get(length..)?;
        Some(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dictionary page of 70 bytes, 40 compressed, with 5 values encoded plain.
    const HEADER: [u8; 14] = [0x15, 4, 0x15, 0x8C, 1, 0x15, 80, 0x4C, 0x15, 10, 0x15, 0, 0, 0];

    #[test]
    fn page_header_length_is_exact() {
        let (header, length) = PageHeader::parse(&[&HEADER[..], b"page"].concat()).unwrap();
        assert_eq!(length, HEADER.len());
        assert_eq!(header.own[1..4], [Some(2), Some(70), Some(40)]);
        assert_eq!(header.kind[1..4], [Some(5), Some(0), None]);
    }

    #[test]
    fn truncated_page_header_is_refused() {
        for length in 0..HEADER.len() {
            assert_eq!(PageHeader::parse(&HEADER[..length]), None, "{length}");
        }
        assert_eq!(PageHeader::parse(&[0x1C; 1000]), None);
        assert_eq!(PageHeader::parse(&[0x15; 1]), None);
    }
}
