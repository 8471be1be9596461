//! The position of every declared tensor of a file, or of a model in several, before any byte of a tensor exists.

use std::collections::HashSet;

use super::encode::header;
use super::parts::PartOf;
use super::{Metadata, TensorType};
use crate::error::GgufLayoutError;
use crate::geometry::{Geometry, OutputFile, Place, fill_files};
use crate::limits::{DEFAULT_ALIGNMENT, MAX_GGUF_DIMENSIONS, MAX_NAME};

/// A tensor to be written: everything about it but its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufDeclaration {
    /// Its name, of at most 63 bytes.
    pub name: String,
    /// The type of its elements.
    pub kind: TensorType,
    /// Its dimensions, the slowest first; at most four, and the last a multiple of the type's block.
    pub shape: Vec<usize>,
}

/// The complete geometry of a file to be written, or of a model in several files. Equal inputs give equal bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufLayout {
    files: Vec<OutputFile>,
    declarations: Vec<GgufDeclaration>,
    places: Vec<Place>,
}

impl GgufLayout {
    /// Lays tensors out in the order of their declarations, each on a multiple of 32 bytes. The file's last tensor is padded
    /// like the others, as other writers do.
    ///
    /// # Errors
    ///
    /// [`GgufLayoutError`]: a name given twice or too long, a shape that the type or the format does not hold, an alignment
    /// that metadata state and is not 32.
    pub fn new(
        file_name: impl Into<String>,
        metadata: &Metadata,
        declarations: Vec<GgufDeclaration>,
    ) -> Result<GgufLayout, GgufLayoutError> {
        let lens = checked_lens(metadata, &declarations)?;
        let mut layout = GgufLayout { files: Vec::new(), declarations, places: Vec::new() };
        layout.add_file(file_name.into(), metadata, &lens)?;
        Ok(layout)
    }

    /// The same in as many files as it takes for none to have more than `max_size` bytes of tensors, unless a single tensor is larger:
    /// `STEM-00001-of-00003.gguf` and so on, the first of which has the metadata. What fits one file is `STEM.gguf`.
    ///
    /// # Errors
    ///
    /// Those of [`Self::new`], and more parts than the format counts.
    pub fn in_parts(
        stem: &str,
        metadata: &Metadata,
        declarations: Vec<GgufDeclaration>,
        max_size: u64,
    ) -> Result<GgufLayout, GgufLayoutError> {
        let lens = checked_lens(metadata, &declarations)?;
        let groups = fill_files(&lens, max_size);
        let (count, tensors) = (groups.len(), declarations.len());
        let mut layout = GgufLayout { files: Vec::new(), declarations, places: Vec::new() };
        if count == 1 {
            layout.add_file(format!("{stem}.gguf"), metadata, &lens)?;
            return Ok(layout);
        }
        for (number, group) in groups.into_iter().enumerate() {
            let part = PartOf::new(number, count, tensors)?;
            let metadata = part.describe(if number == 0 { metadata.clone() } else { Metadata::default() });
            layout.add_file(part.file_name(stem), &metadata, &lens[group])?;
        }
        Ok(layout)
    }

    /// Adds a file with the next tensors, of these lengths.
    fn add_file(&mut self, name: String, metadata: &Metadata, lens: &[u64]) -> Result<(), GgufLayoutError> {
        let mut offsets = Vec::with_capacity(lens.len());
        let mut end = 0u64;
        for len in lens {
            offsets.push(end);
            let next = end.checked_add(*len).and_then(|end| end.checked_next_multiple_of(DEFAULT_ALIGNMENT));
            end = next.ok_or(GgufLayoutError::TotalOverflow)?;
        }
        let first = self.places.len();
        let mut header = header(metadata, &self.declarations[first..first + lens.len()], &offsets);
        header.resize(header.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
        let start = header.len() as u64;
        let len = start.checked_add(end).ok_or(GgufLayoutError::TotalOverflow)?;
        let shard = self.files.len();
        let place = |(offset, len): (&u64, &u64)| Place { shard, offset: start + offset, len: *len };
        self.places.extend(offsets.iter().zip(lens).map(place));
        self.files.push(OutputFile { name, header, len });
        Ok(())
    }

    /// The declared tensors, in their order; a tensor's position is its index everywhere else.
    pub fn declarations(&self) -> &[GgufDeclaration] {
        &self.declarations
    }

    /// The places of the tensors, in declaration order.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The files, the first of which has the metadata. There is always one.
    pub fn files(&self) -> &[OutputFile] {
        &self.files
    }

    /// The name of the first file, by which the model is opened.
    pub fn file_name(&self) -> &str {
        &self.files[0].name
    }

    /// The length of all files in bytes.
    pub fn disk_size(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.len))
    }

    /// The bytes of all tensors together.
    pub fn total_size(&self) -> u64 {
        self.places.iter().map(|place| place.len).sum()
    }
}

impl From<GgufLayout> for Geometry {
    fn from(layout: GgufLayout) -> Geometry {
        let names = layout.declarations.into_iter().map(|declaration| declaration.name).collect();
        Geometry { files: layout.files, names, places: layout.places, index: None }
    }
}

/// The lengths of the tensors, once it is sure that they can be written.
fn checked_lens(metadata: &Metadata, declarations: &[GgufDeclaration]) -> Result<Vec<u64>, GgufLayoutError> {
    if metadata.stated_alignment().is_some_and(|stated| stated.as_u64() != Some(DEFAULT_ALIGNMENT)) {
        return Err(GgufLayoutError::Alignment);
    }
    refuse_bad_names(declarations)?;
    declarations.iter().map(byte_len).collect()
}

fn refuse_bad_names(declarations: &[GgufDeclaration]) -> Result<(), GgufLayoutError> {
    let mut seen = HashSet::with_capacity(declarations.len());
    for GgufDeclaration { name, .. } in declarations {
        if name.len() > MAX_NAME {
            return Err(GgufLayoutError::LongName { tensor: name.clone() });
        }
        if !seen.insert(name) {
            return Err(GgufLayoutError::DuplicateName { tensor: name.clone() });
        }
    }
    Ok(())
}

fn byte_len(declaration: &GgufDeclaration) -> Result<u64, GgufLayoutError> {
    let GgufDeclaration { name, kind, shape } = declaration;
    let len = kind.byte_len(shape).filter(|_| shape.len() <= MAX_GGUF_DIMENSIONS);
    len.ok_or_else(|| GgufLayoutError::Shape { tensor: name.clone(), kind: *kind, shape: shape.clone() })
}
