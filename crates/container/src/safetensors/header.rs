//! Reading the header of a safetensors file without trusting it. No files here: bytes in, checked entries out.
//!
//! Format: <https://github.com/huggingface/safetensors#format>.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::{METADATA_KEY, PREFIX_LEN};
use crate::dtype::{Dtype, byte_len, parse_dtype};
use crate::error::{HeaderError, Quoted, shorten};
use crate::json::Pairs;
use crate::limits::{MAX_DIMENSIONS, MAX_HEADER_LEN};

/// The first bytes of a Git LFS pointer, which a clone without Git LFS leaves in place of a large file.
pub(crate) const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// A checked header: the tensors in file order, with byte ranges that lie inside the file and do not overlap.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    tensors: Vec<TensorEntry>,
    metadata: BTreeMap<String, String>,
    data_start: u64,
}

/// One tensor of a checked header.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorEntry {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    range: Range<u64>,
}

impl TensorEntry {
    /// An entry of another format's file, whose range has been checked.
    pub(crate) fn new(name: String, dtype: Dtype, shape: Vec<usize>, range: Range<u64>) -> Self {
        Self { name, dtype, shape, range }
    }

    /// The tensor's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of its elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The range of its bytes in the file.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Its parts; `None` where they are not exactly its bytes.
    pub(crate) fn cut(&self, parts: Vec<TensorPart>) -> Option<Vec<TensorEntry>> {
        let mut start = self.range.start;
        let mut entries = Vec::with_capacity(parts.len());
        for TensorPart { name, shape } in parts {
            let end = start.checked_add(byte_len(self.dtype, &shape).ok()?)?;
            entries.push(TensorEntry { name, dtype: self.dtype, shape, range: start..end });
            start = end;
        }
        (start == self.range.end).then_some(entries)
    }
}

/// Some of a tensor's outermost rows, seen as a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPart {
    /// Its name.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
}

impl Header {
    /// Parses the header at the start of `bytes`, which may be the whole file or just its beginning; `file_len` is the
    /// length of the whole file.
    ///
    /// Beyond malformed JSON it refuses what other readers accept or crash on: a duplicate name, overlapping or
    /// reversed ranges, ranges that do not match dtype and shape, sizes that overflow, tensors past the end of the file,
    /// metadata that is not a string. Gaps between tensors are allowed.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] names the tensor and what is wrong with it.
    pub fn parse(bytes: &[u8], file_len: u64) -> Result<Self, HeaderError> {
        let json = json_part(bytes, file_len)?;
        let raw: RawHeader = serde_json::from_slice(json).map_err(|e| HeaderError::Json(shorten(&e.to_string())))?;
        let data_start = PREFIX_LEN + json.len() as u64;
        let metadata = unique_metadata(raw.metadata)?;
        refuse_duplicates(&raw.tensors)?;
        let mut tensors =
            raw.tensors.into_iter().map(|raw| check_tensor(raw, data_start)).collect::<Result<Vec<_>, _>>()?;
        tensors.sort_by_key(|t| (t.range.start, t.range.end));
        refuse_overlaps(&tensors)?;
        refuse_truncation(&tensors, file_len)?;
        Ok(Self { tensors, metadata, data_start })
    }

    /// The tensors, in the order of their bytes in the file.
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// The free-form strings of the file, such as `format: pt`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The tensors, in the order of their bytes in the file, and the free-form strings.
    pub(crate) fn into_parts(self) -> (Vec<TensorEntry>, BTreeMap<String, String>) {
        (self.tensors, self.metadata)
    }

    /// The offset at which the header ends and the tensors begin.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }
}

/// The header's JSON: the bytes after the length in front of it.
fn json_part(bytes: &[u8], file_len: u64) -> Result<&[u8], HeaderError> {
    if bytes.starts_with(LFS_POINTER) {
        return Err(HeaderError::LfsPointer);
    }
    let Some((prefix, rest)) = bytes.split_first_chunk() else {
        return Err(HeaderError::TooShort { len: file_len });
    };
    let len = u64::from_le_bytes(*prefix);
    if len > MAX_HEADER_LEN {
        return Err(HeaderError::TooLong { len });
    }
    // The limit keeps `len` within `usize`.
    let json = rest.get(..len as usize);
    let json = json.ok_or(HeaderError::HeaderTruncated { len, missing: len.saturating_sub(rest.len() as u64) })?;
    match json.first() {
        Some(b'{') => Ok(json),
        _ => Err(HeaderError::NotAnObject),
    }
}

/// The header as it stands in the file, with nothing checked but the types of the JSON values.
struct RawHeader {
    tensors: Vec<(String, RawTensor)>,
    metadata: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(RawHeaderVisitor)
    }
}

struct RawHeaderVisitor;

impl<'de> Visitor<'de> for RawHeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut raw = RawHeader { tensors: Vec::new(), metadata: Vec::new() };
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA_KEY {
                let Pairs(pairs) = map.next_value().map_err(|e| A::Error::custom(format!("{METADATA_KEY}: {e}")))?;
                raw.metadata.extend(pairs);
            } else {
                let tensor =
                    map.next_value().map_err(|e| A::Error::custom(format!("tensor {}: {e}", Quoted(&name))))?;
                raw.tensors.push((name, tensor));
            }
        }
        Ok(raw)
    }
}

fn unique_metadata(pairs: Vec<(String, String)>) -> Result<BTreeMap<String, String>, HeaderError> {
    let mut metadata = BTreeMap::new();
    for (key, value) in pairs {
        if metadata.contains_key(&key) {
            return Err(HeaderError::DuplicateMetadata { key });
        }
        metadata.insert(key, value);
    }
    Ok(metadata)
}

fn refuse_duplicates(tensors: &[(String, RawTensor)]) -> Result<(), HeaderError> {
    let mut seen = HashSet::with_capacity(tensors.len());
    match tensors.iter().find(|(name, _)| !seen.insert(name)) {
        Some((name, _)) => Err(HeaderError::DuplicateTensor { tensor: name.clone() }),
        None => Ok(()),
    }
}

/// Checks everything about a tensor that needs no look at the others.
fn check_tensor((name, raw): (String, RawTensor), data_start: u64) -> Result<TensorEntry, HeaderError> {
    let (begin, end) = raw.data_offsets;
    let Some(dtype) = parse_dtype(&raw.dtype) else {
        return Err(HeaderError::UnknownDtype { tensor: name, dtype: raw.dtype });
    };
    if raw.shape.len() > MAX_DIMENSIONS {
        return Err(HeaderError::TooManyDimensions { tensor: name, dimensions: raw.shape.len() });
    }
    let expected = match byte_len(dtype, &raw.shape) {
        Ok(expected) => expected,
        Err(problem) => {
            return Err(HeaderError::Size { tensor: name, dtype, shape: raw.shape, problem });
        }
    };
    let Some(found) = end.checked_sub(begin) else {
        return Err(HeaderError::ReversedOffsets { tensor: name, begin, end });
    };
    if found != expected {
        return Err(HeaderError::SizeMismatch { tensor: name, dtype, shape: raw.shape, expected, found });
    }
    match (begin.checked_add(data_start), end.checked_add(data_start)) {
        (Some(start), Some(end)) => Ok(TensorEntry { name, dtype, shape: raw.shape, range: start..end }),
        _ => Err(HeaderError::OffsetOverflow { tensor: name, end }),
    }
}

/// Checks that no two tensors share a byte. Empty tensors share none, wherever they are.
fn refuse_overlaps(sorted: &[TensorEntry]) -> Result<(), HeaderError> {
    let filled: Vec<&TensorEntry> = sorted.iter().filter(|t| !t.range.is_empty()).collect();
    match filled.windows(2).find(|pair| pair[0].range.end > pair[1].range.start) {
        Some(pair) => Err(HeaderError::Overlap { first: pair[0].name.clone(), second: pair[1].name.clone() }),
        None => Ok(()),
    }
}

/// Checks that every tensor ends inside the file.
fn refuse_truncation(sorted: &[TensorEntry], file_len: u64) -> Result<(), HeaderError> {
    let end = sorted.iter().map(|t| t.range.end).max().unwrap_or(0);
    match sorted.iter().find(|t| t.range.end > file_len) {
        Some(t) => Err(HeaderError::Truncated { tensor: t.name.clone(), file_len, missing: end - file_len }),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "header_tests.rs"]
mod tests;
