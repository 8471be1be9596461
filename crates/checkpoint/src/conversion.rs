//! The distance of the weights of a converted checkpoint from those of its source: both are dequantized, band by band. Exact
//! conversions have no error; this is for conversions that requantize, and for tests.

use crate::plan::{LayerOutput, Plan, PlannedLayer};
use kvant_container::{Checkpoint, Diagnostic, ErrorKind};
use kvant_formats::import;
use kvant_numeric::simd::Isa;
use kvant_weights::import_error::ImportError;
use kvant_weights::weight::{Band, BandAxis, bands};
use kvant_weights::weight::{ImportedTensor, PackedMatrix, Stored};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::HashMap;
use std::sync::Arc;

/// The error of a layer's weight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerError {
    /// The layer's name in the output.
    pub layer: String,
    /// The largest absolute difference.
    pub max: f32,
    /// The root of the sum of squared differences, over that of the squared values: `|W' - W| / |W|`.
    pub relative: f64,
}

/// Failures of a comparison.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// One of the checkpoints cannot be read.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A weight is not there (*invalid*).
    #[error("`{0}` is missing from the converted checkpoint or its source")]
    Missing(String),
}

impl Diagnostic for MeasureError {
    fn kind(&self) -> ErrorKind {
        match self {
            MeasureError::Import(error) => error.kind(),
            MeasureError::Missing(_) => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            MeasureError::Import(error) => error.hint(),
            MeasureError::Missing(_) => Some("convert it again with ‹overwrite›".to_owned()),
        }
    }
}

/// Elements of a band.
const BAND: usize = 1 << 18;

/// The errors of all layers of a conversion's plan, in its order.
///
/// # Errors
/// [`MeasureError`].
pub fn measure(plan: &Plan, source: &Checkpoint, output: &Checkpoint) -> Result<Vec<LayerError>, MeasureError> {
    let (source, output) = (packed(source)?, packed(output)?);
    let error = |layer: &PlannedLayer| {
        let missing = || MeasureError::Missing(layer.name.clone());
        let before = matrix(&source, &layer.source.tensor, layer.source.expert).ok_or_else(missing)?;
        let (name, index) = written_as(layer);
        let after = matrix(&output, &name, index).ok_or_else(missing)?;
        if (before.rows(), before.columns()) != (after.rows(), after.columns()) {
            return Err(missing());
        }
        Ok(difference(layer.name.clone(), before, after))
    };
    plan.layers().par_iter().map(error).collect()
}

type Packed<'a> = HashMap<String, Vec<Arc<PackedMatrix<'a>>>>;

fn packed(checkpoint: &Checkpoint) -> Result<Packed<'_>, ImportError> {
    let mut packed = Packed::new();
    for ImportedTensor { meta, stored } in import::open(checkpoint)?.into_tensors() {
        if let Stored::Packed(matrices) = stored {
            packed.insert(meta.name, matrices);
        }
    }
    Ok(packed)
}

fn matrix<'m, 'a>(packed: &'m Packed<'a>, name: &str, index: Option<usize>) -> Option<&'m Arc<PackedMatrix<'a>>> {
    packed.get(name)?.get(index.unwrap_or(0))
}

/// The tensor that a layer of the output is read as, and its number among several matrices.
pub(crate) fn written_as(layer: &PlannedLayer) -> (String, Option<usize>) {
    match &layer.output {
        LayerOutput::Parts { parts, slice: (index, count), .. } if *count > 1 => {
            let first = parts.first().map_or("", |part| part.name.as_str());
            (first.trim_end_matches("_blocks").to_owned(), Some(*index))
        }
        _ => (format!("{}.weight", layer.name), None),
    }
}

fn difference(layer: String, before: &PackedMatrix<'_>, after: &PackedMatrix<'_>) -> LayerError {
    let isa = Isa::best();
    let (mut max, mut squares, mut whole) = (0.0f32, 0.0f64, 0.0f64);
    for band in bands(before.rows(), before.columns(), BandAxis::Rows, 1, BAND) {
        let read = |matrix: &PackedMatrix<'_>, band: &Band| {
            let mut values = Vec::new();
            matrix.read(isa, band, &mut values);
            values
        };
        for (old, new) in read(before, &band).into_iter().zip(read(after, &band)) {
            let error = if old == new { 0.0 } else { (new - old).abs() };
            // If one of them is NaN, the other is meaningless.
            let error = if error.is_nan() { f32::INFINITY } else { error };
            max = max.max(error);
            squares += f64::from(error) * f64::from(error);
            whole += f64::from(old) * f64::from(old);
        }
    }
    before.release();
    after.release();
    let relative = match (squares, whole) {
        (0.0, _) => 0.0,
        (_, whole) if whole > 0.0 && whole.is_finite() => (squares / whole).sqrt(),
        (squares, 0.0) => squares.sqrt(),
        _ => f64::INFINITY,
    };
    LayerError { layer, max, relative }
}
