//! What quantization leaves of a value, as far as observers must know it: a trait, because schemes of checkpoints and
//! tensors of graphs find scales by different definitions.

use kvant_numeric::Format;
use kvant_numeric::kernel::Range;

/// The numbers to which a tensor is quantized, once its range is known.
pub trait Grid {
    /// The dtype of the codes; `None` where values have no codes under a scale.
    fn dtype(&self) -> Option<Format>;

    /// Whether the codes cover as much below zero as above, whatever the range.
    fn is_symmetric(&self) -> bool;

    /// The function that quantizes a value under the scale of `range`, and dequantizes it.
    fn restore(&self, range: Range) -> Box<dyn Fn(f32) -> f32 + '_>;

    /// The squared error that quantizing `values` under the scale of `range` leaves.
    fn squared_error(&self, values: &[f32], range: Range) -> f64 {
        let restore = self.restore(range);
        values.iter().map(|value| f64::from(restore(*value) - value).powi(2)).sum()
    }
}
