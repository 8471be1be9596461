//! A file, mapped and checked, and views of its tensors. No writing.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use super::parse::{Entry, Header, parse};
use super::{Metadata, TensorType};
use crate::error::Error;
use crate::error::GgufError;
use crate::mmap::MappedFile;

/// A mapped file whose header has been checked.
#[derive(Debug)]
pub struct GgufFile {
    map: MappedFile,
    header: Header,
    /// The position of the named tensor in the header.
    positions: HashMap<String, usize>,
}

impl GgufFile {
    /// Maps a file and checks its header. No tensor is read.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::NotAFile`], and [`Error::Gguf`] for defects: counts and lengths that do not fit the
    /// file, nesting, duplicate keys or names, unknown types, tensors that are unaligned, overlap or leave the file.
    pub fn open(path: &Path) -> Result<GgufFile, Error> {
        let map = MappedFile::open(path)?;
        let wrap = |problem: GgufError| Error::Gguf { file: path.to_path_buf(), problem };
        let header = parse(&map).map_err(wrap)?;
        let named = header.tensors.iter().enumerate().map(|(position, entry)| (entry.name.clone(), position));
        let positions = named.collect();
        Ok(GgufFile { map, header, positions })
    }

    /// The path it was opened with.
    pub fn path(&self) -> &Path {
        self.map.path()
    }

    /// The version of the format.
    pub fn version(&self) -> u32 {
        self.header.version
    }

    /// The alignment of tensors in bytes.
    pub fn alignment(&self) -> u64 {
        self.header.alignment
    }

    /// The metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.header.metadata
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.header.tensors.len()
    }

    /// Returns whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.header.tensors.is_empty()
    }

    /// The tensors, in the order of the header.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = GgufTensor<'_>> {
        self.header.tensors.iter().map(|entry| GgufTensor { file: self, entry })
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Option<GgufTensor<'_>> {
        let entry = self.header.tensors.get(*self.positions.get(name)?)?;
        Some(GgufTensor { file: self, entry })
    }

    /// The mapped file.
    pub fn map(&self) -> &MappedFile {
        &self.map
    }
}

/// A tensor of a mapped file.
#[derive(Debug, Clone, Copy)]
pub struct GgufTensor<'a> {
    file: &'a GgufFile,
    entry: &'a Entry,
}

impl<'a> GgufTensor<'a> {
    /// Its name.
    pub fn name(&self) -> &'a str {
        &self.entry.name
    }

    /// The type of its elements.
    pub fn kind(&self) -> TensorType {
        self.entry.kind
    }

    /// Its dimensions, the slowest first: the other way round than in the file.
    pub fn shape(&self) -> &'a [usize] {
        &self.entry.shape
    }

    /// Its bytes: exactly [`TensorType::byte_len`] of its shape.
    pub fn bytes(&self) -> &'a [u8] {
        &self.file.map[self.range()]
    }

    /// Its length in bytes, without reading any.
    pub fn byte_len(&self) -> u64 {
        self.range().len() as u64
    }

    /// Gives the pages of a part of it back to the system; `part` counts bytes of the tensor.
    pub fn release_part(&self, part: Range<usize>) {
        let Range { start, end } = self.range();
        let absolute = start.saturating_add(part.start).min(end)..start.saturating_add(part.end).min(end);
        self.file.map.release(absolute);
    }

    fn range(&self) -> Range<usize> {
        self.entry.range.clone()
    }
}
