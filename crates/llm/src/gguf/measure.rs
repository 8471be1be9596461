//! How far the tensors of a file are from the source that it was made of: both are read as values, band by band.

use super::codec;
use super::plan::{Content, GgufPlan, PlannedTensor, Slab};
use super::source::{SourceTensors, read};
use crate::conversion::{LayerError, MeasureError};
use crate::import;
use kvant_container::Checkpoint;
use kvant_container::gguf::{GgufFile, GgufTensor};
use kvant_numeric::ggml::dequantize;
use kvant_numeric::simd::Isa;
use rayon::prelude::*;
use std::path::Path;

/// The errors of all tensors whose source is quantized, in the order of the file.
///
/// # Errors
/// [`MeasureError`].
pub fn measure(plan: &GgufPlan, source: &Checkpoint, output: &Path) -> Result<Vec<LayerError>, MeasureError> {
    let file = GgufFile::open(output).map_err(import::ImportError::from)?;
    let tensors = SourceTensors(import::open(source)?.into_tensors());
    let pairs = plan.tensors.iter().filter_map(|tensor| match &tensor.content {
        Content::Slabs(slabs) if slabs.iter().any(|slab| tensors.packed(slab).is_some()) => Some((tensor, slabs)),
        _ => None,
    });
    let pairs: Vec<(&PlannedTensor, &Vec<Slab>)> = pairs.collect();
    let error = |(tensor, slabs): &(&PlannedTensor, &Vec<Slab>)| {
        let missing = || MeasureError::Missing(tensor.name.clone());
        let made = file.tensor(&tensor.name).ok_or_else(missing)?;
        difference(&tensor.name, &tensors, slabs, made).ok_or_else(missing)
    };
    pairs.par_iter().map(error).collect()
}

fn difference(name: &str, tensors: &SourceTensors<'_>, slabs: &[Slab], made: GgufTensor<'_>) -> Option<LayerError> {
    let (isa, kind) = (Isa::best(), codec::of(made.kind())?);
    let (mut max, mut error, mut norm) = (0.0f32, 0.0f64, 0.0f64);
    let (mut expected, mut found, mut start) = (Vec::new(), Vec::new(), 0);
    for slab in slabs {
        let (matrix, row_bytes) = (tensors.matrix(slab)?, kind.row_bytes(slab.out_columns())?);
        for band in PlannedTensor::bands(slab) {
            read(isa, &matrix, slab, &band, &mut expected);
            let end = start + expected.len() / slab.out_columns().max(1) * row_bytes;
            found.resize(expected.len(), 0.0);
            dequantize(isa, kind, made.bytes().get(start..end)?, &mut found);
            start = end;
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
    Some(LayerError { layer: name.to_owned(), max, relative })
}
