//! The small tensors of a file, read at once: norms, biases, routers, and others stored as 32-bit floats. In memory
//! they are tensors like those of other checkpoints.

use super::config::Restored;
use super::tensors::{Found, find};
use kvant_container::gguf::GgufFile;
use kvant_container::{Dtype, Layout, TensorDeclaration, TensorFile};
use kvant_numeric::simd::Isa;
use kvant_weights::import_error::ImportError;
use kvant_weights::weight::Band;
use std::collections::BTreeMap;

/// Reads them.
pub(crate) fn read(file: &GgufFile, restored: &Restored) -> Result<TensorFile, ImportError> {
    let found: Vec<Found<'_>> = find(file, restored)?.into_iter().filter(|found| found.small).collect();
    let declaration =
        |found: &Found<'_>| TensorDeclaration::new(found.meta.name.clone(), Dtype::F32, found.meta.shape.clone());
    let layout = Layout::new(found.iter().map(declaration).collect(), u64::MAX, BTreeMap::new());
    let layout = layout.map_err(kvant_container::Error::from)?;
    let contents: Vec<Vec<u8>> = found.iter().map(values).collect();
    Ok(TensorFile::in_memory(&layout, &contents, file.path())?)
}

fn values(found: &Found<'_>) -> Vec<u8> {
    let mut values = Vec::new();
    for matrix in &found.matrices {
        let band = Band { rows: 0..matrix.rows(), columns: 0..matrix.columns() };
        matrix.read(Isa::best(), &band, &mut values);
    }
    found.change.undo(&mut values);
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
