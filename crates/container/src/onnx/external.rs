//! The location of a tensor's external data, checked before anything is opened.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;

use super::data_type::byte_len;
use super::proto::TensorProto;
use super::tensor::{data_type, element_count};
use crate::error::OnnxError;
use crate::mmap::MappedFile;

/// Maps the files that tensors refer to, each once.
pub(super) struct ExternalFiles<'a> {
    directory: &'a Path,
    mapped: HashMap<String, Bytes>,
}

impl<'a> ExternalFiles<'a> {
    /// Files are looked for below `directory`, the model's own.
    pub(super) fn new(directory: &'a Path) -> Self {
        Self { directory, mapped: HashMap::new() }
    }

    /// The tensor's external bytes, as a slice of the mapped file.
    pub(super) fn contents(&mut self, tensor: &TensorProto) -> Result<Bytes, OnnxError> {
        let place = ExternalRange::of(tensor)?;
        let file = self.file(tensor, &place.location)?;
        let length = match place.length {
            Some(length) => length,
            None => expected_length(tensor)?,
        };
        let end = place.offset.checked_add(length).filter(|&end| end <= file.len());
        let beyond =
            || format!("{} of {length} bytes from {} is beyond its {} bytes", place.location, place.offset, file.len());
        end.map(|end| file.slice(place.offset..end)).ok_or_else(|| problem(tensor, beyond()))
    }

    fn file(&mut self, tensor: &TensorProto, location: &str) -> Result<Bytes, OnnxError> {
        if let Some(bytes) = self.mapped.get(location) {
            return Ok(bytes.clone());
        }
        let outside =
            || OnnxError::OutsideDirectory { tensor: tensor.name().to_owned(), location: location.to_owned() };
        let path = self.inside(location).ok_or_else(outside)?;
        let missing = |cause: String| OnnxError::NoExternalFile {
            tensor: tensor.name().to_owned(),
            location: location.to_owned(),
            cause,
        };
        let resolved = path.canonicalize().map_err(|e| missing(e.to_string()))?;
        if !self.may_resolve_to(&resolved) {
            return Err(outside());
        }
        let file = MappedFile::open(&resolved).map_err(|e| missing(e.to_string()))?;
        let bytes = Bytes::from_owner(file);
        self.mapped.insert(location.to_owned(), bytes.clone());
        Ok(bytes)
    }

    /// The path of a location that is relative and never goes up.
    fn inside(&self, location: &str) -> Option<PathBuf> {
        let path = Path::new(location);
        let plain = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        let sane = !location.is_empty() && !location.contains(['\\', '\0', ':']);
        (plain && sane).then(|| self.directory.join(path))
    }

    /// Links may stay in the model's directory, or lead to the `blobs` of the hub cache whose snapshot the directory is.
    fn may_resolve_to(&self, resolved: &Path) -> bool {
        let Ok(directory) = self.directory.canonicalize() else { return false };
        let snapshots = directory.ancestors().find(|a| a.file_name().is_some_and(|name| name == "snapshots"));
        let blobs = snapshots.and_then(Path::parent).map(|repository| repository.join("blobs"));
        resolved.starts_with(&directory) || blobs.is_some_and(|blobs| resolved.starts_with(blobs))
    }
}

/// The entries of `external_data`.
struct ExternalRange {
    location: String,
    offset: usize,
    length: Option<usize>,
}

impl ExternalRange {
    fn of(tensor: &TensorProto) -> Result<Self, OnnxError> {
        let entry = |key| tensor.external_data.iter().find(|e| e.key() == key).map(|e| e.value());
        let number = |key| match entry(key) {
            None => Ok(None),
            Some(text) => {
                text.parse().map(Some).map_err(|_| problem(tensor, format!("the {key} `{text}` is not a number")))
            }
        };
        let location = entry("location").filter(|location| !location.is_empty());
        let location = location.ok_or_else(|| problem(tensor, "no location".to_owned()))?.to_owned();
        Ok(Self { location, offset: number("offset")?.unwrap_or(0), length: number("length")? })
    }
}

fn expected_length(tensor: &TensorProto) -> Result<usize, OnnxError> {
    let elements = element_count(tensor)? as u64;
    byte_len(data_type(tensor), elements).ok_or_else(|| problem(tensor, "no length, and a type without one".to_owned()))
}

fn problem(tensor: &TensorProto, problem: String) -> OnnxError {
    OnnxError::ExternalData { tensor: tensor.name().to_owned(), problem }
}
