//! Tools for graphs, quantized or not: each changes a model in a way that its user names. One file each.
//!
//! Models must have passed [`check`](crate::graph::check()), and pass it afterwards too. A model that a tool refuses stays as it was. Nothing
//! of a model is executed.

mod clip_infinities;
mod convert_opset;
mod dequantize;
mod error;
mod extract;
mod fix_shapes;
mod listing;
mod rename_domain;
mod to_float;

pub use clip_infinities::{Clipped, clip_infinities};
pub use convert_opset::convert_opset;
pub use dequantize::{Dequantized, dequantize};
pub use error::ToolError;
pub use extract::{Cut, extract};
pub use fix_shapes::{FixedDim, FixedShape, FixedShapes, fix_shapes};
pub use listing::{ListedNode, ListedTensor, QuantizedTensor, nodes, quantized_tensors};
pub use rename_domain::{RenamedDomain, rename_domain};
pub use to_float::to_float;

use kvant_container::onnx::ModelProto;

use crate::pass::{Context, Pass};

/// A copy of a model with its own functions as nodes.
fn inlined(model: &ModelProto) -> Result<ModelProto, ToolError> {
    let mut made = model.clone();
    Pass::named("function-inlining")?.run(&mut made, &Context::default())?;
    Ok(made)
}
