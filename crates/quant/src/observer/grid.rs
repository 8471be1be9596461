//! The rounding of a value that observers evaluate: a trait, because schemes of checkpoints and
//! tensors of graphs define scales differently.

use crate::graph_grid::GraphGrid;
use kvant_numeric::DType;
use kvant_numeric::kernel::Range;

/// The numbers to which a tensor is quantized, once its range is known.
pub trait Grid {
    /// The dtype of the codes; `None` where values have no codes under a scale.
    fn dtype(&self) -> Option<DType>;

    /// Returns whether the codes always cover as much below zero as above.
    fn is_symmetric(&self) -> bool;

    /// The function that quantizes a value under the scale of `range`, and dequantizes it.
    fn restore(&self, range: Range) -> Box<dyn Fn(f32) -> f32 + '_>;

    /// The definitions that a tensor of a graph follows; `None` of tensors of checkpoints. The observers of Kvant that ONNX
    /// Runtime and PyTorch define in different ways follow the one or the other.
    fn graph(&self) -> Option<&GraphGrid> {
        None
    }

    /// The squared error that quantizing `values` under the scale of `range` leaves.
    fn squared_error(&self, values: &[f32], range: Range) -> f64 {
        let restore = self.restore(range);
        values.iter().map(|value| f64::from(restore(*value) - value).powi(2)).sum()
    }
}

impl Grid for GraphGrid {
    fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    fn is_symmetric(&self) -> bool {
        self.symmetric
    }

    fn restore(&self, range: Range) -> Box<dyn Fn(f32) -> f32 + '_> {
        let affine = self.affine(range);
        match (self.codes(), self.float()) {
            (Some(codes), _) => Box::new(move |value| {
                let code = (value / affine.scale).round_ties_even() as i64;
                let code = code.saturating_add(affine.zero_point).clamp(codes.min, codes.max);
                (code - affine.zero_point) as f32 * affine.scale
            }),
            (None, Some(float)) => Box::new(move |value| float.round(value / affine.scale) * affine.scale),
            (None, None) => Box::new(|value| value),
        }
    }

    fn graph(&self) -> Option<&GraphGrid> {
        Some(self)
    }
}
