//! One file of tensors, mapped and checked, and views of them: safetensors, or what `torch.save` wrote. No shards, no writing.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::Path;

use crate::dtype::Dtype;
use crate::error::Error;
use crate::mmap::MappedFile;
use crate::pytorch;
use crate::safetensors::{Header, Layout, TensorEntry, TensorPart};
use crate::supply::Held;

/// A mapped file whose tensors are known to be inside it: see [`Header::parse`].
#[derive(Debug)]
pub struct TensorFile {
    map: MappedFile,
    /// In the order of their bytes.
    entries: Vec<TensorEntry>,
    metadata: BTreeMap<String, String>,
}

impl TensorFile {
    /// Maps a safetensors file and checks its header. No tensor is read.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::NotAFile`], and [`Error::Header`] for everything [`Header::parse`] refuses.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::of(MappedFile::open(path)?)
    }

    /// Maps a file that `torch.save` wrote and reads where its tensors are. None is read, and nothing of the file is executed.
    ///
    /// Tensors of different names can share bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::NotAFile`], and [`Error::Pytorch`] for damaged files, for strided views, and for everything that is
    /// not a tensor.
    pub fn open_pytorch(path: &Path) -> Result<Self, Error> {
        let map = MappedFile::open(path)?;
        let entries = pytorch::entries(&map).map_err(|problem| Error::Pytorch { file: path.to_path_buf(), problem })?;
        Ok(Self { map, entries, metadata: BTreeMap::new() })
    }

    /// The tensors of a layout of one file whose bytes are in memory, one `Vec` a declaration; `path` is that of the file that
    /// they were made of.
    ///
    /// # Errors
    ///
    /// [`Error::Header`] where bytes are not as long as their declaration says.
    pub fn in_memory(layout: &Layout, contents: &[Vec<u8>], path: &Path) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        for shard in layout.shards() {
            bytes.extend_from_slice(shard.header());
            shard.tensors().iter().filter_map(|index| contents.get(*index)).for_each(|tensor| bytes.extend(tensor));
        }
        Self::of(MappedFile::in_memory(bytes, path))
    }

    fn of(map: MappedFile) -> Result<Self, Error> {
        let header = Header::parse(&map, map.len() as u64);
        let header = header.map_err(|problem| Error::Header { file: map.path().to_path_buf(), problem })?;
        let (entries, metadata) = header.into_parts();
        Ok(Self { map, entries, metadata })
    }

    /// The same file with tensors seen as their parts, which follow each other. Tensors without parts stay whole, as do those whose
    /// parts are not exactly their bytes, or have the name of another tensor.
    #[must_use]
    pub fn divided(self, parts_of: impl Fn(&TensorEntry) -> Option<Vec<TensorPart>>) -> Self {
        let names: HashSet<String> = self.entries.iter().map(|entry| entry.name().to_owned()).collect();
        let is_new = |part: &TensorEntry| !names.contains(part.name());
        let divide = |entry: TensorEntry| {
            let parts = parts_of(&entry).and_then(|parts| entry.cut(parts));
            parts.filter(|parts| parts.iter().all(is_new)).unwrap_or_else(|| vec![entry])
        };
        Self { entries: self.entries.into_iter().flat_map(divide).collect(), ..self }
    }

    /// The same file with a tensor that has a second name, under which it stands behind itself; unchanged if there is no such tensor.
    #[must_use]
    pub fn with_second_name(mut self, tensor: &str, name: &str) -> Self {
        if let Some(place) = self.entries.iter().position(|entry| entry.name() == tensor) {
            let whole = TensorPart { name: name.to_owned(), shape: self.entries[place].shape().to_vec() };
            let second = self.entries[place].cut(vec![whole]).unwrap_or_default();
            self.entries.splice(place + 1..place + 1, second);
        }
        self
    }

    /// The path it was opened with.
    pub fn path(&self) -> &Path {
        self.map.path()
    }

    /// The free-form strings of the header, such as `format: pt`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tensors, in the order of their bytes in the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        self.entries.iter().map(|entry| TensorView { file: self, entry })
    }

    /// The tensor at a position of [`Self::tensors`].
    pub fn get(&self, index: usize) -> Option<TensorView<'_>> {
        self.entries.get(index).map(|entry| TensorView { file: self, entry })
    }

    /// The mapped file, for advice about larger parts of it than a tensor.
    pub fn map(&self) -> &MappedFile {
        &self.map
    }
}

/// A tensor of a mapped file: a name, a dtype, a shape, and bytes borrowed from the map. Copying it copies two pointers.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    file: &'a TensorFile,
    entry: &'a TensorEntry,
}

impl<'a> TensorView<'a> {
    /// The tensor's name.
    pub fn name(&self) -> &'a str {
        self.entry.name()
    }

    /// The type of its elements.
    pub fn dtype(&self) -> Dtype {
        self.entry.dtype()
    }

    /// Its dimensions, outermost first; empty for a scalar.
    pub fn shape(&self) -> &'a [usize] {
        self.entry.shape()
    }

    /// Its length in bytes, without reading any.
    pub fn byte_len(&self) -> u64 {
        self.entry.range().end - self.entry.range().start
    }

    /// Its bytes: row-major, little-endian, exactly [`crate::byte_len`] of dtype and shape.
    ///
    /// They need not be aligned to the dtype: files of other writers are not always.
    pub fn bytes(&self) -> &'a [u8] {
        self.file.map.bytes(self.range())
    }

    /// The bytes of a part of it, which counts bytes of the tensor; `None` where that is not inside. Of a file whose bytes are fetched when
    /// they are needed, no others are.
    pub fn part(&self, part: Range<usize>) -> Option<&'a [u8]> {
        self.inside(part).map(|range| self.file.map.bytes(range))
    }

    /// Says that a part will be read after those announced before, where bytes are fetched when they are needed.
    pub fn announce(&self, part: Range<usize>) {
        self.inside(part).into_iter().for_each(|range| self.file.map.announce(range));
    }

    /// Keeps a part in a file whose bytes are fetched when they are needed; `None` for other files.
    pub fn hold(&self, part: Range<usize>) -> Option<Held> {
        self.file.map.hold(self.inside(part)?)
    }

    /// The file that holds it.
    pub fn file(&self) -> &'a Path {
        self.file.path()
    }

    /// Starts reading its bytes from disk, to be used soon.
    pub fn will_need(&self) {
        self.file.map.will_need(self.range());
    }

    /// Gives its pages back to the system, when its bytes are not needed for now.
    pub fn release(&self) {
        self.file.map.release(self.range());
    }

    /// Gives the pages of a part of it back to the system; `part` counts bytes of the tensor.
    pub fn release_part(&self, part: Range<usize>) {
        let Range { start, end } = self.range();
        let absolute = start.saturating_add(part.start).min(end)..start.saturating_add(part.end).min(end);
        self.file.map.release(absolute);
    }

    /// Its bytes in pieces of `size` bytes, each to be looked at once: the pages of a piece are given back to the system when the next
    /// one is asked for, so that tensors of any size take no more memory than a piece.
    pub fn pieces(self, size: usize) -> impl Iterator<Item = &'a [u8]> {
        let pieces = self.bytes().chunks(size).enumerate();
        pieces
            .inspect(move |(index, _)| self.release_part(index.saturating_sub(1) * size..index * size))
            .map(|(_, piece)| piece)
    }

    /// Where a part of it is in the map.
    fn inside(&self, part: Range<usize>) -> Option<Range<usize>> {
        let Range { start, end } = self.range();
        let absolute = start.checked_add(part.start)?..start.checked_add(part.end)?;
        (absolute.start <= absolute.end && absolute.end <= end).then_some(absolute)
    }

    /// Where its bytes are in the map; the header's check keeps them inside, hence within `usize`.
    fn range(&self) -> Range<usize> {
        let Range { start, end } = self.entry.range();
        start as usize..end as usize
    }
}
