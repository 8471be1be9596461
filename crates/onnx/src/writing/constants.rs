//! Constant nodes as initializers: one way to be constant instead of two.

use kvant_container::onnx::{GraphProto, ModelProto, TensorProto};

use crate::graph::{attribute, is};

/// Makes an initializer of every Constant node of the main graph that holds a dense tensor.
pub fn lift_constants(model: &mut ModelProto) {
    if let Some(graph) = model.graph.as_mut() {
        lift(graph);
    }
}

fn lift(graph: &mut GraphProto) {
    let mut lifted = Vec::new();
    graph.node.retain(|node| match constant(node) {
        Some(tensor) => {
            lifted.push(tensor);
            false
        }
        None => true,
    });
    graph.initializer.append(&mut lifted);
}

fn constant(node: &kvant_container::onnx::NodeProto) -> Option<TensorProto> {
    let value = attribute(node, "value").filter(|_| is(node, "Constant"))?.t.as_ref()?;
    Some(TensorProto { name: node.output.first().cloned(), ..value.clone() })
}
