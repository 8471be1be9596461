//! The value of an activation after quantization with static scales, for observers.

use super::StaticParameters;
use crate::observer::Grid;
use crate::parameters::{Affine, dequantize, quantize};
use crate::scheme::{TensorScheme, ZeroPoint};
use kvant_numeric::kernel::Range;
use kvant_numeric::{ComputeDType, DType};

/// The grid of activations with one scheme, in the model's arithmetic.
pub(super) struct ActivationGrid {
    pub(super) scheme: TensorScheme,
    pub(super) arithmetic: ComputeDType,
}

impl Grid for ActivationGrid {
    fn dtype(&self) -> Option<DType> {
        Some(self.scheme.format())
    }

    fn is_symmetric(&self) -> bool {
        !matches!(self.scheme, TensorScheme::Int(int) if int.zero_point != ZeroPoint::Zero)
    }

    fn restore(&self, range: Range) -> Box<dyn Fn(f32) -> f32 + '_> {
        let parameters = StaticParameters::of_ranges(self.scheme, &[range], self.arithmetic);
        let scale = parameters.scales.first().copied().unwrap_or(1.0);
        let affine = Affine { scale, zero_point: f64::from(parameters.zero_points.first().copied().unwrap_or(0.0)) };
        match self.scheme {
            TensorScheme::Int(int) => {
                Box::new(move |value| dequantize(quantize(int.format, value, 1.0 / scale, affine.zero_point), affine))
            }
            TensorScheme::Float(float) => Box::new(move |value| float.format.round(value / scale) * scale),
            _ => Box::new(|value| value),
        }
    }
}
