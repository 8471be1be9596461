//! Round to nearest as a selectable rounding: no data, no settings. The work on a weight is in `rtn.rs`.

use super::algorithm::Rounding;
use super::problem::{Grid, LayerError, LayerProblem, Needs, RoundedLayer};
use super::rtn::{RoundingError, Rtn, TensorContext};
use crate::parameters::Affine;
use crate::quant_tensor::QuantTensor;
use crate::scheme::{Axis, Granularity, TensorScheme};
use kvant_numeric::kernel::{Range, group_ranges};
use kvant_numeric::simd::Isa;
use rayon::prelude::*;

/// Rows of a weight that are rounded at a time.
const BAND: usize = 256;

/// Each weight to the nearest code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nearest;

impl Rounding for Nearest {
    fn name(&self) -> &str {
        "rtn"
    }

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn round(&self, problem: &mut LayerProblem<'_>) -> Result<RoundedLayer, LayerError> {
        Ok(RoundedLayer::new(nearest(problem)?))
    }
}

/// The nearest codes of a problem.
///
/// # Errors
/// As [`Rtn::round`].
pub fn nearest(problem: &LayerProblem<'_>) -> Result<QuantTensor, RoundingError> {
    let (rows, columns) = (problem.shape.outputs, problem.shape.features);
    match problem.grid {
        Grid::Scheme { scheme, context, from } => nearest_in_bands(scheme, context, from, rows, columns),
        Grid::Fixed { parameters, codes } => Ok(on_grid(problem.weight, parameters, codes)),
    }
}

/// The codes of integers that are nearest on given scales: `clamp(round(value / scale) + zero_point)`, half to even.
fn on_grid(weight: &[f32], parameters: &QuantTensor, (lowest, highest): (i64, i64)) -> QuantTensor {
    let code = |(value, affine): (&f32, Affine)| {
        let step = f64::from((value / affine.scale).round_ties_even());
        (step + affine.zero_point).clamp(lowest as f64, highest as f64) as i64
    };
    let codes: Vec<i64> = weight.iter().zip(parameters.affines()).map(code).collect();
    parameters.with_integers(codes)
}

/// A weight rounded to nearest: in bands of rows where no scale spans rows.
pub(super) fn nearest_in_bands(
    scheme: TensorScheme,
    context: TensorContext,
    weights: &[f32],
    rows: usize,
    columns: usize,
) -> Result<QuantTensor, RoundingError> {
    let by_rows = matches!(
        scheme.granularity(),
        Some(Granularity::Channel(Axis::Rows) | Granularity::Group { axis: Axis::Columns, .. })
    );
    if !by_rows || rows <= BAND {
        return Rtn::new(scheme, context)?.round(weights, rows, columns);
    }
    let range = context.range.or_else(|| scheme.needs_tensor_range().then(|| range(weights)));
    let rtn = Rtn::new(scheme, TensorContext { range, ..context })?;
    let bands = weights.par_chunks(BAND * columns).map(|band| rtn.round(band, band.len() / columns, columns));
    let mut bands = bands.collect::<Result<Vec<_>, _>>()?.into_iter();
    let mut whole = bands.next().unwrap_or_else(|| rtn.empty(columns));
    for band in bands {
        whole.append_rows(band)?;
    }
    Ok(whole)
}

pub(super) fn range(weights: &[f32]) -> Range {
    let mut range = [Range::EMPTY];
    group_ranges(Isa::best(), weights, weights.len().max(1), &mut range);
    range[0]
}
