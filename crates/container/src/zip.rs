//! The directory of a zip archive, and where its entries are. Nothing is inflated here.
//!
//! Format: <https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT>, with its 64-bit extensions.

use std::ops::Range;

const END: [u8; 4] = *b"PK\x05\x06";
const END_LEN: usize = 22;
const END64: [u8; 4] = *b"PK\x06\x06";
const LOCATOR64: [u8; 4] = *b"PK\x06\x07";
const LOCATOR64_LEN: usize = 20;
const CENTRAL: [u8; 4] = *b"PK\x01\x02";
const CENTRAL_LEN: usize = 46;
const LOCAL: [u8; 4] = *b"PK\x03\x04";
const LOCAL_LEN: usize = 30;
/// The comment at the end of an archive is at most this long.
const LONGEST_COMMENT: usize = 0xffff;
/// Entries that a directory may have: far more than tensors in any model.
const MOST_ENTRIES: u64 = 1 << 20;

/// A defect of an archive's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ZipError {
    /// There is no directory at the end of the file.
    #[error("not a zip archive, or truncated")]
    NoDirectory,
    /// The directory has more entries than any file that is read has.
    #[error("more than a million entries")]
    TooManyEntries,
    /// The directory ends early, or says what cannot be.
    #[error("a broken directory")]
    BrokenDirectory,
}

/// An entry of an archive's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZipEntry {
    /// Its path in the archive.
    pub name: String,
    /// Whether it is encrypted.
    pub encrypted: bool,
    /// How it is compressed: 0 stored, 8 deflated.
    pub method: u16,
    /// CRC-32 of the file in it, once inflated.
    pub checksum: u32,
    /// Its length in bytes, once inflated.
    pub size: u64,
    compressed: u64,
    offset: u64,
}

impl ZipEntry {
    /// The bytes of the archive that hold it, as they are; `None` where they are not inside the archive.
    pub fn contents(&self, archive: &[u8]) -> Option<Range<usize>> {
        let at = usize::try_from(self.offset).ok()?;
        let head = archive.get(at..at.checked_add(LOCAL_LEN)?)?;
        head.starts_with(&LOCAL).then_some(())?;
        let lens = usize::from(u16_at(head, 26)?) + usize::from(u16_at(head, 28)?);
        let start = at + LOCAL_LEN + lens;
        let end = start.checked_add(usize::try_from(self.compressed).ok()?)?;
        (end <= archive.len()).then_some(start..end)
    }
}

/// The entries of an archive, in the order of its directory.
///
/// # Errors
///
/// [`ZipError`]; whether an entry's contents are inside the archive is checked by [`ZipEntry::contents`].
pub fn zip_entries(archive: &[u8]) -> Result<Vec<ZipEntry>, ZipError> {
    let (mut at, count) = directory(archive).ok_or(ZipError::NoDirectory)?;
    if count > MOST_ENTRIES {
        return Err(ZipError::TooManyEntries);
    }
    let mut entries = Vec::new();
    for _ in 0..count {
        let (entry, next) = central(archive, at).ok_or(ZipError::BrokenDirectory)?;
        at = next;
        entries.push(entry);
    }
    Ok(entries)
}

/// Where the directory starts, and its number of entries.
fn directory(bytes: &[u8]) -> Option<(usize, u64)> {
    let earliest = bytes.len().saturating_sub(END_LEN + LONGEST_COMMENT);
    let end = (earliest..=bytes.len().checked_sub(END_LEN)?).rev().find(|&at| bytes[at..].starts_with(&END))?;
    let (count, offset) = (u64::from(u16_at(bytes, end + 10)?), u64::from(u32_at(bytes, end + 16)?));
    if count != 0xffff && offset != 0xffff_ffff {
        return Some((usize::try_from(offset).ok()?, count));
    }
    let locator = end.checked_sub(LOCATOR64_LEN).filter(|&at| bytes[at..].starts_with(&LOCATOR64));
    let Some(locator) = locator else { return Some((usize::try_from(offset).ok()?, count)) };
    let end = usize::try_from(u64_at(bytes, locator + 8)?).ok()?;
    bytes.get(end..)?.starts_with(&END64).then_some(())?;
    let offset = u64_at(bytes, end.checked_add(48)?)?;
    Some((usize::try_from(offset).ok()?, u64_at(bytes, end + 32)?))
}

/// The directory's entry at a place, and the place after it.
fn central(bytes: &[u8], at: usize) -> Option<(ZipEntry, usize)> {
    let head = bytes.get(at..at.checked_add(CENTRAL_LEN)?)?;
    head.starts_with(&CENTRAL).then_some(())?;
    let lens = [28, 30, 32].map(|field| u16_at(head, field).map(usize::from));
    let (name_len, extra_len, comment_len) = (lens[0]?, lens[1]?, lens[2]?);
    let name_at = at + CENTRAL_LEN;
    let extra_at = name_at.checked_add(name_len)?;
    let next = extra_at.checked_add(extra_len)?;
    let name = String::from_utf8_lossy(bytes.get(name_at..extra_at)?).into_owned();
    let mut wide = Wide64::find(bytes.get(extra_at..next)?);
    let entry = ZipEntry {
        name,
        encrypted: u16_at(head, 8)? & 1 != 0,
        method: u16_at(head, 10)?,
        checksum: u32_at(head, 16)?,
        // The order of these in the 64-bit field, where they do not fit 32 bits.
        size: wide.or(u32_at(head, 24)?)?,
        compressed: wide.or(u32_at(head, 20)?)?,
        offset: wide.or(u32_at(head, 42)?)?,
    };
    Some((entry, next.checked_add(comment_len)?))
}

/// The 64-bit sizes of an entry, used up in order.
struct Wide64<'b>(&'b [u8]);

impl<'b> Wide64<'b> {
    fn find(mut extra: &'b [u8]) -> Self {
        while let (Some(id), Some(len)) = (u16_at(extra, 0), u16_at(extra, 2)) {
            let Some(field) = extra.get(4..4 + usize::from(len)) else { break };
            if id == 1 {
                return Self(field);
            }
            extra = &extra[4 + field.len()..];
        }
        Self(&[])
    }

    fn or(&mut self, narrow: u32) -> Option<u64> {
        if narrow != u32::MAX {
            return Some(narrow.into());
        }
        let value = u64_at(self.0, 0)?;
        self.0 = &self.0[8..];
        Some(value)
    }
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array_at(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array_at(bytes, at).map(u64::from_le_bytes)
}
