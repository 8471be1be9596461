//! Writing importance matrices as llama.cpp reads them.

use super::read::{COUNTS, SQUARES};
use super::{ImatrixError, InputSums, Provenance, legacy};
use kvant_container::Geometry;
use kvant_container::gguf::{GgufDeclaration, GgufLayout, IMATRIX_TYPE, Metadata, TensorType, Text};
use kvant_container::write_file;
use std::collections::BTreeMap;
use std::path::Path;

/// Writes sums to a file: GGUF, or the older format where the name ends in `.dat`. It appears when it is complete.
///
/// # Errors
/// System errors.
pub fn write(path: &Path, sums: &BTreeMap<String, InputSums>, provenance: &Provenance) -> Result<(), ImatrixError> {
    let is_legacy = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("dat"));
    let bytes = if is_legacy { legacy::encode(sums, provenance) } else { encode(sums, provenance)? };
    write_file(path, &bytes).map_err(|cause| ImatrixError::Write { file: path.to_path_buf(), cause })
}

fn encode(sums: &BTreeMap<String, InputSums>, provenance: &Provenance) -> Result<Vec<u8>, ImatrixError> {
    let mut metadata = Metadata::new();
    metadata.set("general.type", IMATRIX_TYPE);
    metadata
        .set("imatrix.datasets", provenance.datasets.iter().map(|name| Text::from(name.as_str())).collect::<Vec<_>>());
    metadata.set("imatrix.chunk_count", provenance.chunks);
    metadata.set("imatrix.chunk_size", provenance.chunk_size);
    let declared = |name: String, shape: Vec<usize>| GgufDeclaration { name, kind: TensorType::F32, shape };
    let declarations = sums.iter().flat_map(|(name, sums)| {
        let matrices = sums.counts.len();
        [
            declared(format!("{name}{SQUARES}"), vec![matrices, sums.columns]),
            declared(format!("{name}{COUNTS}"), vec![matrices, 1]),
        ]
    });
    let layout = GgufLayout::new("imatrix", &metadata, declarations.collect()).map_err(kvant_container::Error::from)?;
    let contents = sums.values().flat_map(|sums| {
        let counts = sums.counts.iter().map(|count| *count as f32).collect::<Vec<f32>>();
        [sums.squares.iter().map(|sum| *sum as f32).collect(), counts]
    });
    Ok(assemble(layout, contents))
}

/// A file in memory: these are small.
fn assemble(layout: GgufLayout, contents: impl Iterator<Item = Vec<f32>>) -> Vec<u8> {
    let geometry = Geometry::from(layout);
    let mut bytes = geometry.files[0].header.clone();
    for (place, values) in geometry.places.iter().zip(contents) {
        bytes.resize(place.offset as usize, 0);
        values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
    }
    bytes.resize(geometry.files[0].len as usize, 0);
    bytes
}
