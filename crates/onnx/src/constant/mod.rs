//! Constant tensors and the operators that can be computed while a graph is rewritten: shapes, masks, scales, small weights.
//!
//! Not an engine: no convolutions, no matrix products, nothing random and nothing of quantization. What is not in the table
//! of [`evaluate`] is left to the runtime.

mod arithmetic;
mod attributes;
mod evaluate;
mod movement;
mod numbers;
mod value;

pub use evaluate::{Call, evaluate, is_known};
pub(crate) use evaluate::{equal_parts, shape_range, slice_range};
pub use numbers::Numbers;
pub use value::Value;
