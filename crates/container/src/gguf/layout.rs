//! The position of every declared tensor of a file, before any byte of a tensor exists.

use std::collections::HashSet;

use super::encode::header;
use super::{Metadata, TensorType};
use crate::error::GgufLayoutError;
use crate::geometry::{Geometry, OutputFile, Place};
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

/// The complete geometry of a file to be written. Equal inputs give equal bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufLayout {
    file_name: String,
    declarations: Vec<GgufDeclaration>,
    header: Vec<u8>,
    places: Vec<Place>,
    file_len: u64,
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
        if metadata.stated_alignment().is_some_and(|stated| stated.as_u64() != Some(DEFAULT_ALIGNMENT)) {
            return Err(GgufLayoutError::Alignment);
        }
        refuse_bad_names(&declarations)?;
        let lens = declarations.iter().map(byte_len).collect::<Result<Vec<_>, _>>()?;
        let mut offsets = Vec::with_capacity(lens.len());
        let mut end = 0u64;
        for len in &lens {
            offsets.push(end);
            let next = end.checked_add(*len).and_then(|end| end.checked_next_multiple_of(DEFAULT_ALIGNMENT));
            end = next.ok_or(GgufLayoutError::TotalOverflow)?;
        }
        let mut header = header(metadata, &declarations, &offsets);
        header.resize(header.len().next_multiple_of(DEFAULT_ALIGNMENT as usize), 0);
        let start = header.len() as u64;
        let file_len = start.checked_add(end).ok_or(GgufLayoutError::TotalOverflow)?;
        let place = |(offset, len): (&u64, &u64)| Place { shard: 0, offset: start + offset, len: *len };
        let places = offsets.iter().zip(&lens).map(place).collect();
        Ok(GgufLayout { file_name: file_name.into(), declarations, header, places, file_len })
    }

    /// The declared tensors, in their order; a tensor's position is its index everywhere else.
    pub fn declarations(&self) -> &[GgufDeclaration] {
        &self.declarations
    }

    /// The places of the tensors, in declaration order.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// The bytes in front of the tensors.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The file's name.
    pub fn file_name(&self) -> &str {
        &self.file_name
    }

    /// The length of the whole file in bytes.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// The bytes of all tensors together.
    pub fn total_size(&self) -> u64 {
        self.places.iter().map(|place| place.len).sum()
    }
}

impl From<GgufLayout> for Geometry {
    fn from(layout: GgufLayout) -> Geometry {
        let file = OutputFile { name: layout.file_name, header: layout.header, len: layout.file_len };
        let names = layout.declarations.into_iter().map(|declaration| declaration.name).collect();
        Geometry { files: vec![file], names, places: layout.places, index: None }
    }
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
