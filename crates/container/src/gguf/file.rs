//! A model in one file or several, mapped and checked, and views of its tensors. No writing.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::parse::{Entry, Header, parse};
use super::parts::PartOf;
use super::{Metadata, TensorType};
use crate::error::Error;
use crate::error::GgufError;
use crate::mmap::MappedFile;

/// A mapped file whose header has been checked, or all files of a model that is split into parts.
#[derive(Debug)]
pub struct GgufFile {
    /// The file; of a model in several files all of them, in their order.
    maps: Vec<MappedFile>,
    path: PathBuf,
    /// Of several files, the first one's, with the tensors of all and without what it says of parts.
    header: Header,
    /// The position of the named tensor in the header.
    positions: HashMap<String, usize>,
}

impl GgufFile {
    /// Maps a file and checks its header. No tensor is read. Where it is a part of a model in several files, all of them are
    /// opened.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::NotAFile`], and [`Error::Gguf`] for defects: counts and lengths that do not fit the
    /// file, nesting, duplicate keys or names, unknown types, tensors that are unaligned, overlap or leave the file, parts that are
    /// missing, misnamed or of another model.
    pub fn open(path: &Path) -> Result<GgufFile, Error> {
        let wrap = |problem: GgufError| Error::Gguf { file: path.to_path_buf(), problem };
        let (map, header) = open_one(path)?;
        let (maps, header) = match PartOf::of(&header.metadata) {
            None => (vec![map], header),
            Some(part) => open_all(part, &part.paths(path).map_err(wrap)?)?,
        };
        let named = header.tensors.iter().enumerate().map(|(position, entry)| (entry.name.clone(), position));
        let positions: HashMap<String, usize> = named.collect();
        Ok(GgufFile { maps, path: path.to_path_buf(), header, positions })
    }

    /// The path it was opened with.
    pub fn path(&self) -> &Path {
        &self.path
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

    /// The mapped files: one, or the parts of a model.
    pub fn maps(&self) -> &[MappedFile] {
        &self.maps
    }
}

fn open_one(path: &Path) -> Result<(MappedFile, Header), Error> {
    let map = MappedFile::open(path)?;
    let header = parse(&map).map_err(|problem| Error::Gguf { file: path.to_path_buf(), problem })?;
    Ok((map, header))
}

/// The files of a model, and their tensors together.
fn open_all(part: PartOf, paths: &[PathBuf]) -> Result<(Vec<MappedFile>, Header), Error> {
    let (mut maps, mut whole): (Vec<MappedFile>, Option<Header>) = (Vec::new(), None);
    let mut names = HashSet::new();
    for (place, path) in paths.iter().enumerate() {
        let wrap = |problem: GgufError| Error::Gguf { file: path.clone(), problem };
        let (map, mut header) = open_one(path)?;
        part.check(place, PartOf::of(&header.metadata)).map_err(wrap)?;
        for tensor in &mut header.tensors {
            tensor.part = place;
            if !names.insert(tensor.name.clone()) {
                return Err(wrap(GgufError::DuplicateTensor(tensor.name.clone())));
            }
        }
        maps.push(map);
        match &mut whole {
            Some(whole) => whole.tensors.append(&mut header.tensors),
            None => whole = Some(header),
        }
    }
    let first = paths.first().cloned().unwrap_or_default();
    let Some(mut whole) = whole else { return Err(Error::NotAFile { file: first }) };
    let (found, stated) = (whole.tensors.len(), PartOf::of(&whole.metadata).and_then(|part| part.tensors));
    if let Some(stated) = stated.filter(|&stated| stated != found as u64) {
        return Err(Error::Gguf { file: first, problem: GgufError::PartsIncomplete { found, stated } });
    }
    PartOf::forget(&mut whole.metadata);
    Ok((maps, whole))
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
        &self.map()[self.range()]
    }

    /// Its length in bytes, without reading any.
    pub fn byte_len(&self) -> u64 {
        self.range().len() as u64
    }

    /// Gives the pages of a part of it back to the system; `part` counts bytes of the tensor.
    pub fn release_part(&self, part: Range<usize>) {
        let Range { start, end } = self.range();
        let absolute = start.saturating_add(part.start).min(end)..start.saturating_add(part.end).min(end);
        self.map().release(absolute);
    }

    fn map(&self) -> &'a MappedFile {
        &self.file.maps[self.entry.part]
    }

    fn range(&self) -> Range<usize> {
        self.entry.range.clone()
    }
}
