//! Constant tensors and the operators that can be computed while a graph is rewritten: shapes, masks, scales, small weights.
//!
//! Not an engine: no convolutions, no matrix products, nothing random and nothing of quantization. What is not in the table
//! of [`evaluate`] is left to the runtime.

mod arithmetic;
mod attributes;
mod evaluate;
mod movement;
mod numbers;
mod parts;
mod shapes;
mod value;

pub use evaluate::{Call, evaluate, is_known};
pub use numbers::Numbers;
pub(crate) use parts::{equal_parts, slice_range};
pub(crate) use shapes::shape_range;
pub use value::Value;
