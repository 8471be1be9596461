//! Round to nearest as a selectable rounding: no data, no settings. The work on a weight is in `rtn.rs`.

use super::algorithm::Rounding;
use super::bands::nearest_in_bands;
use super::problem::{Grid, LayerError, LayerProblem, Needs, RoundedLayer};
use super::rtn::RoundingError;
use super::weights::Weights;
use crate::parameters::Affine;
use crate::quant_tensor::QuantTensor;
use kvant_numeric::kernel::Elements;

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
/// As [`Rtn::round`](super::Rtn::round).
pub fn nearest(problem: &LayerProblem<'_>) -> Result<QuantTensor, RoundingError> {
    let (rows, columns) = (problem.shape.outputs, problem.shape.features);
    match problem.grid {
        Grid::Scheme { scheme, context, from } => {
            nearest_in_bands(scheme, context, Weights::of_shape(Elements::Values(from), rows, columns))
        }
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
