//! Weights after rounding to nearest under a range, for observers.

use crate::observer::Grid;
use crate::parameters::{dequantize, quantize};
use crate::scheme::{FloatScheme, IntScheme, ZeroPoint};
use kvant_numeric::kernel::Range;
use kvant_numeric::{ComputeDType, DType};

/// The grid of integers.
pub(super) struct IntGrid {
    pub(super) scheme: IntScheme,
    pub(super) arithmetic: ComputeDType,
}

impl Grid for IntGrid {
    fn dtype(&self) -> Option<DType> {
        Some(DType::Int(self.scheme.format))
    }

    fn is_symmetric(&self) -> bool {
        self.scheme.zero_point == ZeroPoint::Zero
    }

    fn restore(&self, range: Range) -> Box<dyn Fn(f32) -> f32 + '_> {
        let affine = self.scheme.parameters(range, self.arithmetic);
        let (format, inverse) = (self.scheme.format, 1.0 / affine.scale);
        Box::new(move |value| dequantize(quantize(format, value, inverse, affine.zero_point), affine))
    }

    fn squared_error(&self, values: &[f32], range: Range) -> f64 {
        self.scheme.squared_error(values, self.scheme.parameters(range, self.arithmetic))
    }
}

/// The grid of small floats, under the scale of the tensor if there is one.
pub(super) struct FloatGrid {
    pub(super) scheme: FloatScheme,
    pub(super) arithmetic: ComputeDType,
    pub(super) global_scale: f32,
}

impl FloatGrid {
    pub(super) fn scale(&self, range: Range) -> f32 {
        self.scheme.scale(range.abs_max(), self.arithmetic, self.global_scale)
    }
}

impl Grid for FloatGrid {
    fn dtype(&self) -> Option<DType> {
        Some(DType::MiniFloat(self.scheme.format))
    }

    fn is_symmetric(&self) -> bool {
        true
    }

    fn restore(&self, range: Range) -> Box<dyn Fn(f32) -> f32 + '_> {
        let (format, scale) = (self.scheme.format, self.scale(range));
        Box::new(move |value| format.decode(format.encode(value / scale)) * scale)
    }

    fn squared_error(&self, values: &[f32], range: Range) -> f64 {
        let (format, scale) = (self.scheme.format, self.scale(range));
        values.iter().map(|v| f64::from(format.decode(format.encode(v / scale)) * scale - v).powi(2)).sum()
    }
}
