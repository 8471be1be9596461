//! Histograms of the weights of quantized layers before and after, for reports. Both checkpoints are read once more for them, so that runs
//! without a report do nothing for it.

use crate::conversion::written_as;
use crate::plan::{Plan, PlannedLayer};
use kvant_container::Checkpoint;
use kvant_formats::import;
use kvant_numeric::kernel::widen;
use kvant_numeric::simd::Isa;
use kvant_weights::float_dtype::float_dtype;
use kvant_weights::import_error::ImportError;
use kvant_weights::weight::{BandAxis, ImportedTensor, Stored, bands};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::HashMap;

/// Bins of a histogram: an odd number, so that zeros, of which quantization makes many, are in the middle of one.
const BINS: usize = 33;
/// Elements that are read at a time.
const PIECE: usize = 1 << 18;

/// The weights of a layer before and after quantization.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WeightHistogram {
    /// The layer's name in the output.
    pub layer: String,
    /// The greatest magnitude of a weight, before or after. Bins divide the range from its negative to it evenly.
    pub limit: f32,
    /// The number of weights of the source in each of 33 bins.
    pub before: Vec<u64>,
    /// The same of the dequantized weights of the output.
    pub after: Vec<u64>,
}

/// The histograms of the layers of a plan, or of as many as `most`, evenly spread, in the plan's order. Layers whose weights one of the
/// checkpoints does not hold as matrices of the same number of elements are left out.
///
/// # Errors
/// Checkpoints that cannot be read.
pub fn weight_histograms(
    plan: &Plan,
    source: &Checkpoint,
    output: &Checkpoint,
    most: usize,
) -> Result<Vec<WeightHistogram>, ImportError> {
    let (source, output) = (StoredWeights::open(source)?, StoredWeights::open(output)?);
    let layers = plan.layers();
    let step = layers.len().div_ceil(most.max(1)).max(1);
    let chosen: Vec<&PlannedLayer> = layers.iter().step_by(step).collect();
    Ok(chosen.into_par_iter().filter_map(|layer| histogram(layer, &source, &output)).collect())
}

fn histogram(layer: &PlannedLayer, source: &StoredWeights<'_>, output: &StoredWeights<'_>) -> Option<WeightHistogram> {
    let (name, index) = written_as(layer);
    let elements = layer.rows * layer.columns;
    let before = StoredWeight { stored: source.0.get(&layer.source.tensor)?, index: layer.source.expert, elements };
    let after = StoredWeight { stored: output.0.get(&name)?, index, elements };
    let mut limit = 0.0f32;
    for weight in [&before, &after] {
        weight.read(|values| {
            limit = values.iter().filter(|value| value.is_finite()).fold(limit, |limit, value| limit.max(value.abs()));
        })?;
    }
    let counts = |weight: &StoredWeight<'_, '_>| {
        let mut counts = vec![0; BINS];
        weight.read(|values| values.iter().filter_map(|value| bin(*value, limit)).for_each(|bin| counts[bin] += 1))?;
        Some(counts)
    };
    Some(WeightHistogram { layer: layer.name.clone(), limit, before: counts(&before)?, after: counts(&after)? })
}

/// The bin of a value: values that are not finite have none, and zeros of a weight without other values the middle one.
fn bin(value: f32, limit: f32) -> Option<usize> {
    match limit > 0.0 {
        true if value.is_finite() => {
            Some((((f64::from(value) / f64::from(limit) + 1.0) * 0.5 * BINS as f64) as usize).min(BINS - 1))
        }
        true => None,
        false => Some(BINS / 2),
    }
}

/// The tensors of a checkpoint by name.
struct StoredWeights<'a>(HashMap<String, Stored<'a>>);

impl<'a> StoredWeights<'a> {
    fn open(checkpoint: &'a Checkpoint) -> Result<StoredWeights<'a>, ImportError> {
        let tensors = import::open(checkpoint)?.into_tensors().into_iter();
        Ok(StoredWeights(tensors.map(|ImportedTensor { meta, stored }| (meta.name, stored)).collect()))
    }
}

/// A weight: a tensor, or a matrix of one.
struct StoredWeight<'w, 'a> {
    stored: &'w Stored<'a>,
    index: Option<usize>,
    elements: usize,
}

impl StoredWeight<'_, '_> {
    /// Passes all elements on in pieces, in any order; `None` if they are not as many.
    fn read(&self, mut values: impl FnMut(&[f32])) -> Option<()> {
        let (isa, index) = (Isa::best(), self.index.unwrap_or(0));
        let mut piece = Vec::new();
        match self.stored {
            Stored::Plain(view) => {
                let dtype = float_dtype(view.dtype())?;
                let length = self.elements * dtype.size();
                let bytes = view.bytes().get(index.checked_mul(length)?..index.checked_add(1)?.checked_mul(length)?)?;
                for bytes in bytes.chunks(PIECE * dtype.size()) {
                    piece.resize(bytes.len() / dtype.size(), 0.0);
                    widen(isa, dtype, bytes, &mut piece);
                    values(&piece);
                }
            }
            Stored::Packed(matrices) => {
                let matrix = matrices.get(index).filter(|matrix| matrix.rows() * matrix.columns() == self.elements)?;
                for band in bands(matrix.rows(), matrix.columns(), BandAxis::Rows, 1, PIECE) {
                    piece.clear();
                    matrix.read(isa, &band, &mut piece);
                    values(&piece);
                }
                matrix.release();
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_divide_the_range_evenly() {
        let cases =
            [(-2.0, 0), (-1.88, 0), (-1.87, 1), (-0.06, 16), (0.0, 16), (0.06, 16), (0.07, 17), (1.9, 32), (2.0, 32)];
        for (value, expected) in cases {
            assert_eq!(bin(value, 2.0), Some(expected), "{value}");
        }
        assert_eq!((bin(f32::NAN, 2.0), bin(f32::INFINITY, 2.0), bin(0.0, 0.0)), (None, None, Some(16)));
    }
}
