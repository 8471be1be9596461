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
mod retype;
mod to_float;
mod to_qdq;
mod to_qoperator;

pub use clip_infinities::{Clipped, clip_infinities};
pub use convert_opset::convert_opset;
pub use dequantize::{Dequantized, dequantize};
pub use error::ToolError;
pub use extract::{Cut, extract};
pub use fix_shapes::{FixedDim, FixedShape, FixedShapes, fix_shapes};
pub use listing::{ListedNode, ListedTensor, QuantizedTensor, nodes, quantized_tensors};
pub use rename_domain::{RenamedDomain, rename_domain};
pub use retype::{CodeTypes, RetypeRequest, Retyped, retype};
pub use to_float::to_float;
pub use to_qdq::{Separated, to_qdq};
pub use to_qoperator::{Joined, to_qoperator};

use std::collections::HashSet;

use kvant_container::onnx::ModelProto;

use crate::graph::{domain, for_each_node};
use crate::pass::{Context, Pass};

/// A copy of a model with its own functions as nodes.
fn inlined(model: &ModelProto) -> Result<ModelProto, ToolError> {
    let mut made = model.clone();
    Pass::named("function-inlining")?.run(&mut made, &Context::default())?;
    Ok(made)
}

/// Takes out those of some domains that no node uses. A model with functions keeps them.
fn forget_idle_domains(model: &mut ModelProto, domains: &[&str]) {
    let mut used = HashSet::new();
    for_each_node(&model.graph, &mut |node| {
        used.insert(domain(node).to_owned());
    });
    let has_functions = !model.functions.is_empty();
    model.opset_import.retain(|set| has_functions || used.contains(set.domain()) || !domains.contains(&set.domain()));
}
