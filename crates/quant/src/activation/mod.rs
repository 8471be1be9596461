//! Quantization of activations, and the statistics from which static parameters are computed. Not
//! weights, whose parameters lie beside their codes in a [`QuantTensor`](crate::QuantTensor).
//!
//! ```
//! use kvant_numeric::{ComputeDType, simd::Isa};
//! use kvant_quant::activation::{ActivationQuantizer, ActivationStatistic};
//! use kvant_quant::scheme::ActivationScheme;
//!
//! let scheme: ActivationScheme = "int8:tensor!static".parse()?;
//! let mut rows = [0.1, -25.5, 3.0, 12.75];
//! let mut statistic = ActivationStatistic::new(scheme)?;
//! statistic.update(Isa::best(), &rows, 2);
//! let parameters = statistic.parameters(scheme.scheme, ComputeDType::F32);
//! assert_eq!(parameters.as_ref().map(|p| p.scales[0]), Some(0.2));
//!
//! let quantizer = ActivationQuantizer::new(scheme, parameters)?;
//! quantizer.apply(Isa::best(), ComputeDType::F32, &mut rows, 2);
//! assert_eq!(rows[2], 3.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod apply;
mod covered;
mod error;
mod grid;
mod histogram;
mod quantizer;
mod spread;
mod statistic;
mod task;

pub use covered::CoveredRange;
pub use error::ActivationError;
pub use histogram::{ActivationHistogram, Ends};
pub use quantizer::ActivationQuantizer;
pub use statistic::ActivationStatistic;

use crate::scheme::{ActivationScheme, FloatScheme, IntScheme, TensorScheme};
use kvant_numeric::ComputeDType;
use kvant_numeric::kernel::Range;
use serde::{Deserialize, Serialize};

/// Checks whether activations can be quantized with this scheme.
///
/// # Errors
/// [`ActivationError::Scheme`] for combinations that make no sense for activations.
pub fn check(scheme: ActivationScheme) -> Result<(), ActivationError> {
    spread::Spread::of(scheme).map(|_| ())
}

/// Scales and zero points of activations, found by calibration and stored in a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StaticParameters {
    /// One for the tensor, or one a feature. Where block scales are computed for every batch
    /// ([`Timing::Local`](crate::scheme::Timing::Local)) the one scale of the tensor, a multiplier.
    pub scales: Vec<f32>,
    /// The codes of zero, as many as scales; none where zero is code 0.
    pub zero_points: Vec<f32>,
}

impl StaticParameters {
    /// The parameters with which `scheme` covers the ranges: one of the tensor, or one a feature. None for schemes without
    /// scales.
    pub fn of_ranges(scheme: TensorScheme, ranges: &[Range], arithmetic: ComputeDType) -> StaticParameters {
        match scheme {
            TensorScheme::Int(scheme) => int_parameters(scheme, ranges, arithmetic),
            TensorScheme::Float(scheme) => {
                let scale = |range: &Range| finite(float_scale(scheme, *range, arithmetic), arithmetic);
                StaticParameters { scales: ranges.iter().map(scale).collect(), zero_points: vec![] }
            }
            _ => StaticParameters::default(),
        }
    }
}

fn int_parameters(scheme: IntScheme, ranges: &[Range], arithmetic: ComputeDType) -> StaticParameters {
    let affines = || ranges.iter().map(|range| scheme.parameters(*range, arithmetic));
    let kept = scheme.has_zero_points();
    StaticParameters {
        scales: affines().map(|affine| finite(affine.scale, arithmetic)).collect(),
        zero_points: affines().filter(|_| kept).map(|affine| affine.zero_point as f32).collect(),
    }
}

/// The scale of the tensor over block scales, or the scale itself.
fn float_scale(scheme: FloatScheme, range: Range, arithmetic: ComputeDType) -> f32 {
    let amax = range.abs_max();
    scheme.global_scale(amax).unwrap_or_else(|| scheme.scale(amax, arithmetic, 1.0))
}

/// Activations may be larger than the model's type holds, where the forward pass is computed in a wider one.
fn finite(scale: f32, arithmetic: ComputeDType) -> f32 {
    let largest = if arithmetic == ComputeDType::F16 { 65_504.0 } else { f32::MAX };
    scale.min(largest)
}
