//! The position of every declared tensor: shards, headers and offsets, before any byte of a tensor exists. Does not access files.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use super::encode::{EncodedTensor, encode_header};
use super::{METADATA_KEY, PREFIX_LEN};
use crate::dtype::{Dtype, alignment, byte_len};
use crate::error::LayoutError;
use crate::geometry::{Geometry, OutputFile, Place, fill_files};
use crate::limits::MAX_HEADER_LEN;

/// A tensor to be written: everything about it but its bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorDeclaration {
    /// Its name, unique in the checkpoint.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, outermost first; empty for a scalar.
    pub shape: Vec<usize>,
}

impl TensorDeclaration {
    /// A declaration from its parts.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), dtype, shape: shape.into() }
    }
}

/// One file of a layout.
#[derive(Debug, Clone, PartialEq)]
pub struct Shard {
    file_name: String,
    header: Vec<u8>,
    tensors: Vec<usize>,
    file_len: u64,
}

impl Shard {
    /// The file's name: `model.safetensors`, or `model-00001-of-00003.safetensors`.
    pub fn file_name(&self) -> &str {
        &self.file_name
    }

    /// The bytes in front of the tensors, length and padding included.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The indices of its tensors among the declarations, in the order of their bytes.
    pub fn tensors(&self) -> &[usize] {
        &self.tensors
    }

    /// The length of the whole file in bytes.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }
}

/// How the files of weights are called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightFiles {
    /// `model.safetensors`, as transformers looks for them.
    #[default]
    Model,
    /// `diffusion_pytorch_model.safetensors`, as diffusers does.
    Diffusion,
}

impl WeightFiles {
    fn stem(self) -> &'static str {
        match self {
            WeightFiles::Model => "model",
            WeightFiles::Diffusion => "diffusion_pytorch_model",
        }
    }

    fn shard(self, number: usize, count: usize) -> String {
        match count {
            1 => self.whole(),
            _ => format!("{}-{:05}-of-{count:05}.safetensors", self.stem(), number + 1),
        }
    }

    /// The file that holds all tensors, where they are not sharded.
    pub fn whole(self) -> String {
        format!("{}.safetensors", self.stem())
    }

    /// The file that maps tensors to shards.
    pub fn index(self) -> String {
        format!("{}.safetensors.index.json", self.stem())
    }
}

/// The complete geometry of a checkpoint to be written. Equal inputs give equal bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    files: WeightFiles,
    declarations: Vec<TensorDeclaration>,
    places: Vec<Place>,
    shards: Vec<Shard>,
    total_size: u64,
}

/// The contents of the file that maps tensors to shards.
#[derive(Serialize)]
struct Index<'a> {
    metadata: IndexMetadata,
    weight_map: BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct IndexMetadata {
    total_size: u64,
}

impl Layout {
    /// Lays the tensors out. Shards are filled in the order of the declarations, and hold at most `max_shard_size` bytes of
    /// tensors, unless a single tensor is larger. Inside a shard, tensors of wider elements come first (declaration order
    /// among equals), so that every one is aligned without gaps, which readers do not accept. `metadata` goes into the
    /// header of every shard; transformers demands `format: pt` there.
    ///
    /// # Errors
    ///
    /// [`LayoutError`]: a name given twice or reserved, a size that does not exist, a header over the limit of the format.
    pub fn new(
        declarations: Vec<TensorDeclaration>,
        max_shard_size: u64,
        metadata: BTreeMap<String, String>,
    ) -> Result<Self, LayoutError> {
        refuse_bad_names(&declarations)?;
        let sizes = declarations.iter().map(size_of).collect::<Result<Vec<_>, _>>()?;
        let total_size =
            sizes.iter().try_fold(0u64, |sum, &size| sum.checked_add(size)).ok_or(LayoutError::TotalOverflow)?;
        let groups = fill_files(&sizes, max_shard_size);
        let mut layout = Self {
            files: WeightFiles::default(),
            places: vec![Place { shard: 0, offset: 0, len: 0 }; sizes.len()],
            declarations,
            shards: vec![],
            total_size,
        };
        let count = groups.len();
        for (number, group) in groups.into_iter().enumerate() {
            layout.place_shard(layout.files.shard(number, count), group.collect(), &sizes, &metadata)?;
        }
        Ok(layout)
    }

    /// The same with files that are called otherwise.
    pub fn with_files(mut self, files: WeightFiles) -> Self {
        let count = self.shards.len();
        self.shards.iter_mut().enumerate().for_each(|(number, shard)| shard.file_name = files.shard(number, count));
        Self { files, ..self }
    }

    /// The declared tensors, in their order; a tensor's position is its index everywhere else.
    pub fn declarations(&self) -> &[TensorDeclaration] {
        &self.declarations
    }

    /// The places of the tensors, in declaration order.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The files, in order. There is always at least one.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The bytes of all tensors together.
    pub fn total_size(&self) -> u64 {
        self.total_size
    }

    /// The bytes of all shard files together, headers included.
    pub fn disk_size(&self) -> u64 {
        self.shards.iter().fold(0, |sum, shard| sum.saturating_add(shard.file_len))
    }

    /// The contents of the index, `model.safetensors.index.json`, names sorted; `None` if there is a single file, which needs no index.
    pub fn index(&self) -> Option<String> {
        if self.shards.len() < 2 {
            return None;
        }
        let file_of = |place: &Place| self.shards[place.shard].file_name.as_str();
        let weight_map =
            self.declarations.iter().zip(&self.places).map(|(d, place)| (d.name.as_str(), file_of(place))).collect();
        let index = Index { metadata: IndexMetadata { total_size: self.total_size }, weight_map };
        serde_json::to_string_pretty(&index).ok().map(|json| json + "\n")
    }

    /// Adds a shard holding the tensors of `group`, and records their places.
    fn place_shard(
        &mut self,
        file_name: String,
        mut group: Vec<usize>,
        sizes: &[u64],
        metadata: &BTreeMap<String, String>,
    ) -> Result<(), LayoutError> {
        group.sort_by_key(|&i| std::cmp::Reverse(alignment(self.declarations[i].dtype)));
        let offsets = running_ranges(&group, sizes);
        let encoded: Vec<EncodedTensor<'_>> =
            group.iter().zip(&offsets).map(|(&i, &range)| encoded(&self.declarations[i], range)).collect();
        let header = encode_header(metadata, &encoded).map_err(|e| LayoutError::Encode(e.to_string()))?;
        if header.len() as u64 > MAX_HEADER_LEN + PREFIX_LEN {
            return Err(LayoutError::HeaderTooLong { file_name, len: header.len() as u64 });
        }
        let header_len = header.len() as u64;
        let data_len = offsets.last().map_or(0, |&(_, end)| end);
        let file_len = data_len.checked_add(header_len).ok_or(LayoutError::TotalOverflow)?;
        for (&i, &(begin, end)) in group.iter().zip(&offsets) {
            self.places[i] = Place { shard: self.shards.len(), offset: header_len + begin, len: end - begin };
        }
        self.shards.push(Shard { file_name, header, tensors: group, file_len });
        Ok(())
    }
}

impl From<Layout> for Geometry {
    fn from(layout: Layout) -> Geometry {
        let index = layout.index().map(|text| (layout.files.index(), text));
        let names = layout.declarations.into_iter().map(|declaration| declaration.name).collect();
        let file = |shard: Shard| OutputFile { name: shard.file_name, header: shard.header, len: shard.file_len };
        Geometry { files: layout.shards.into_iter().map(file).collect(), names, places: layout.places, index }
    }
}

fn refuse_bad_names(declarations: &[TensorDeclaration]) -> Result<(), LayoutError> {
    let mut seen = HashSet::with_capacity(declarations.len());
    for declaration in declarations {
        let name = &declaration.name;
        if name == METADATA_KEY {
            return Err(LayoutError::ReservedName);
        }
        if !seen.insert(name) {
            return Err(LayoutError::DuplicateName { tensor: name.clone() });
        }
    }
    Ok(())
}

fn size_of(declaration: &TensorDeclaration) -> Result<u64, LayoutError> {
    byte_len(declaration.dtype, &declaration.shape).map_err(|problem| LayoutError::Size {
        tensor: declaration.name.clone(),
        dtype: declaration.dtype,
        shape: declaration.shape.clone(),
        problem,
    })
}

/// The ranges of tensors laid one after the other. Their sum was checked to fit 64 bits.
fn running_ranges(group: &[usize], sizes: &[u64]) -> Vec<(u64, u64)> {
    let mut end = 0;
    let mut next = |&i: &usize| {
        let begin = end;
        end += sizes[i];
        (begin, end)
    };
    group.iter().map(&mut next).collect()
}

fn encoded(declaration: &TensorDeclaration, data_offsets: (u64, u64)) -> EncodedTensor<'_> {
    EncodedTensor { name: &declaration.name, dtype: declaration.dtype, shape: &declaration.shape, data_offsets }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
