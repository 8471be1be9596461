//! The small tensors of a file, read at once: norms, biases, routers, and others stored as 32-bit floats. In memory
//! they are tensors like those of other checkpoints.

use super::config::Restored;
use super::tensors::{Contents, Found, find};
use kvant_container::gguf::GgufFile;
use kvant_container::{Dtype, Layout, TensorDeclaration, TensorFile};
use kvant_model::network::TensorMeta;
use kvant_numeric::simd::Isa;
use kvant_weights::import_error::ImportError;
use kvant_weights::weight::Band;
use std::collections::BTreeMap;

/// Reads them.
pub(crate) fn read(file: &GgufFile, restored: &Restored) -> Result<TensorFile, ImportError> {
    let Contents { found, numbers } = find(file, restored)?;
    let found: Vec<Found<'_>> = found.into_iter().filter(|found| found.small).collect();
    let declaration = |meta: &TensorMeta| TensorDeclaration::new(meta.name.clone(), Dtype::F32, meta.shape.clone());
    let metas = found.iter().map(|found| &found.meta).chain(numbers.iter().map(|(meta, _)| meta));
    let layout = Layout::new(metas.map(declaration).collect(), u64::MAX, BTreeMap::new());
    let layout = layout.map_err(kvant_container::Error::from)?;
    let of_metadata = numbers.iter().map(|(_, number)| number.to_le_bytes().to_vec());
    let contents: Vec<Vec<u8>> = found.iter().map(values).chain(of_metadata).collect();
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
