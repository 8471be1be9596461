//! The arrays of numpy's `.npz` files: zip archives of `.npy` files, stored or deflated. Nothing else of zip is read.
//!
//! Format: <https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT>, with its 64-bit extensions, which numpy uses.

use std::io::Read;
use std::path::Path;

use flate2::CrcReader;
use flate2::read::DeflateDecoder;
use kvant_container::onnx::Bytes;

use super::error::DataError;
use super::stored::{Stored, entry, map};

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
/// Entries that a directory may have: far more than arrays in any calibration file.
const MOST_ENTRIES: u64 = 1 << 20;

/// An entry of the archive's directory.
struct ZipEntry {
    name: String,
    encrypted: bool,
    method: u16,
    /// CRC-32 of the file in it, once inflated.
    checksum: u32,
    compressed: u64,
    size: u64,
    offset: u64,
}

/// All arrays of an archive. Stored ones are mapped, deflated ones are inflated as they are read.
pub(super) fn open(path: &Path) -> Result<Vec<Stored>, DataError> {
    let bytes = map(path)?;
    let invalid = |problem: &str| DataError::invalid(path, problem);
    let (mut at, count) = directory(&bytes).ok_or_else(|| invalid("not an .npz file, or truncated"))?;
    if count > MOST_ENTRIES {
        return Err(invalid("more than a million entries"));
    }
    let mut arrays = Vec::new();
    for _ in 0..count {
        let (entry, next) = central(&bytes, at).ok_or_else(|| invalid("a broken directory"))?;
        at = next;
        arrays.push(array(path, &bytes, entry)?);
    }
    Ok(arrays)
}

fn array(path: &Path, bytes: &Bytes, found: ZipEntry) -> Result<Stored, DataError> {
    let place = entry(path, &found.name);
    let Some(name) = found.name.strip_suffix(".npy") else {
        return Err(DataError::unsupported(place, "an entry that is not an .npy file"));
    };
    let name = name.to_owned();
    if found.encrypted {
        return Err(DataError::unsupported(place, "an encrypted entry"));
    }
    let contents = contents(bytes, &found).ok_or_else(|| DataError::invalid(&place, "contents beyond the file"))?;
    let damaged = || DataError::invalid(&place, "its checksum is not that of its contents: the file is damaged");
    match found.method {
        0 if checksum(&mut &contents[..]).ok() != Some(found.checksum) => Err(damaged()),
        0 => Stored::npy(place, name, contents),
        8 => {
            let made = Stored::deflated_npy(place.clone(), name, contents.clone(), found.size)?;
            // As many bytes as the header has, which is no more than a compressed file of this size can have.
            match checksum(&mut DeflateDecoder::new(&contents[..]).take(found.size)) {
                Ok(sum) if sum == found.checksum => Ok(made),
                Ok(_) => Err(damaged()),
                Err(cause) => Err(DataError::invalid(&place, format!("broken compressed data: {cause}"))),
            }
        }
        other => Err(DataError::unsupported(place, format!("compression method {other}"))),
    }
}

/// The CRC-32 of everything that is read.
fn checksum(contents: &mut dyn Read) -> std::io::Result<u32> {
    let mut reader = CrcReader::new(contents);
    std::io::copy(&mut reader, &mut std::io::sink())?;
    Ok(reader.crc().sum())
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

fn contents(bytes: &Bytes, entry: &ZipEntry) -> Option<Bytes> {
    let at = usize::try_from(entry.offset).ok()?;
    let head = bytes.get(at..at.checked_add(LOCAL_LEN)?)?;
    head.starts_with(&LOCAL).then_some(())?;
    let lens = usize::from(u16_at(head, 26)?) + usize::from(u16_at(head, 28)?);
    let start = at + LOCAL_LEN + lens;
    let end = start.checked_add(usize::try_from(entry.compressed).ok()?)?;
    (end <= bytes.len()).then(|| bytes.slice(start..end))
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
