//! The distance of a file's tensors from its source: both are dequantized, band by band.

use super::plan::{GgufPlan, PlannedTensor};
use super::source::{SourceTensors, read};
use crate::conversion::{LayerError, MeasureError};
use kvant_container::Checkpoint;
use kvant_container::gguf::{GgufFile, GgufTensor};
use kvant_gguf::model::codec;
use kvant_gguf::model::restore::factors;
use kvant_gguf::model::{Content, TensorSlice};
use kvant_numeric::simd::Isa;
use kvant_weights::import_error::ImportError;
use kvant_weights::weight::RowMap;
use kvant_weights::weight::{BlockMatrix, BlockPiece};
use rayon::prelude::*;
use std::path::Path;

/// The errors of all tensors whose source is quantized, in the order of the file.
///
/// # Errors
/// [`MeasureError`].
pub fn measure(plan: &GgufPlan, source: &Checkpoint, output: &Path) -> Result<Vec<LayerError>, MeasureError> {
    let file = GgufFile::open(output).map_err(ImportError::from)?;
    let tensors = SourceTensors::open(source)?;
    let has_codes = |tensor: &&PlannedTensor| match &tensor.content {
        Content::Slabs(slabs) => slabs.iter().any(|slab| tensors.packed(slab).is_some()),
        Content::Taken(_) => tensor.is_quantized(),
        Content::Values(_) | Content::Integers(_) => false,
    };
    let found: Vec<&PlannedTensor> = plan.tensors.iter().filter(has_codes).collect();
    let error = |tensor: &&PlannedTensor| {
        let missing = || MeasureError::Missing(tensor.name.clone());
        let made = file.tensor(&tensor.name).ok_or_else(missing)?;
        match &tensor.content {
            Content::Slabs(slabs) => {
                let scales = scales(&file, source, tensor, slabs.len()).ok_or_else(missing)?;
                difference(&tensors, slabs, made, &scales).ok_or_else(missing)
            }
            Content::Taken(position) => taken(source, *position, made).ok_or_else(missing),
            Content::Values(_) | Content::Integers(_) => Err(missing()),
        }
    };
    found.par_iter().map(error).collect()
}

/// The error of a tensor whose bytes are copied: zero, or it is another tensor.
fn taken(source: &Checkpoint, position: usize, made: GgufTensor<'_>) -> Option<LayerError> {
    let before = source.gguf()?.tensors().nth(position)?;
    let is_same = (before.kind(), before.bytes()) == (made.kind(), made.bytes());
    let error = if is_same { 0.0 } else { f32::INFINITY };
    Some(LayerError { layer: made.name().to_owned(), max: error, relative: error.into() })
}

/// The scales of a tensor's matrices; what is made of a file keeps its scales, so that neither side counts them.
fn scales(file: &GgufFile, source: &Checkpoint, tensor: &PlannedTensor, matrices: usize) -> Option<Vec<f32>> {
    match source.gguf() {
        Some(_) => Some(vec![1.0; matrices]),
        None => factors(file, &tensor.name, matrices).ok(),
    }
}

fn difference(
    tensors: &SourceTensors<'_>,
    slabs: &[TensorSlice],
    made: GgufTensor<'_>,
    scales: &[f32],
) -> Option<LayerError> {
    let (isa, kind) = (Isa::best(), codec::of(made.kind())?);
    let (mut max, mut error, mut norm) = (0.0f32, 0.0f64, 0.0f64);
    let (mut expected, mut found, mut first) = (Vec::new(), Vec::new(), 0);
    for (slab, factor) in slabs.iter().zip(scales) {
        let (matrix, rows) = (tensors.matrix(slab)?, RowMap::all(slab.out_rows()));
        let width = slab.out_columns();
        let (tensor, factor) = (made.into(), *factor);
        let piece = BlockPiece { tensor, kind, width, first, rows, transposed: false, columns: None, factor };
        let after = BlockMatrix::new(slab.out_rows(), width, vec![piece])?;
        first += slab.out_rows();
        for band in PlannedTensor::bands(slab) {
            read(isa, &matrix, slab, &band, &mut expected);
            found.clear();
            after.read(isa, &band, &mut found);
            for (expected, found) in expected.iter().zip(&found) {
                let difference = found - expected;
                max = max.max(difference.abs());
                error += f64::from(difference).powi(2);
                norm += f64::from(*expected).powi(2);
            }
        }
        tensors.release(slab);
    }
    let relative = if error == 0.0 { 0.0 } else { (error / norm).sqrt() };
    Some(LayerError { layer: made.name().to_owned(), max, relative })
}
