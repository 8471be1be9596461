//! Graph inputs and outputs as integers: the pair at the boundary loses the half that the caller takes over.

use std::collections::HashMap;

use kvant_container::onnx::{GraphProto, NodeProto, TypeValue, ValueInfoProto, data_type};

use crate::graph::Index;
use crate::recipe::Boundary;

/// Removes QuantizeLinear behind inputs and DequantizeLinear before outputs, where the boundary shall be integer.
pub fn apply(graph: &mut GraphProto, boundary: Boundary) {
    if boundary != Boundary::Integer {
        return;
    }
    let types: HashMap<String, i32> =
        graph.initializer.iter().map(|t| (t.name().to_owned(), data_type(t) as i32)).collect();
    inputs(graph, &types);
    outputs(graph, &types);
}

fn element_of(node: &NodeProto, types: &HashMap<String, i32>) -> Option<i32> {
    node.input.get(2).and_then(|zero_point| types.get(zero_point)).copied()
}

fn inputs(graph: &mut GraphProto, types: &HashMap<String, i32>) {
    let names: Vec<String> = graph.input.iter().map(|v| v.name().to_owned()).collect();
    for (position, name) in names.iter().enumerate() {
        // Only where nothing else reads the floats, inside a subgraph or as an output.
        let Some(quantizer) = Index::new(graph).only_consumer(name) else { continue };
        let node = graph.node[quantizer].clone();
        let Some(element) = element_of(&node, types).filter(|_| node.op_type() == "QuantizeLinear") else { continue };
        retype(&mut graph.input[position], element);
        graph.node.remove(quantizer);
        for input in graph.node.iter_mut().flat_map(|n| &mut n.input).filter(|input| **input == node.output[0]) {
            input.clone_from(name);
        }
    }
}

fn outputs(graph: &mut GraphProto, types: &HashMap<String, i32>) {
    let names: Vec<String> = graph.output.iter().map(|v| v.name().to_owned()).collect();
    for (position, name) in names.iter().enumerate() {
        let read = !Index::new(graph).consumers(name).is_empty();
        let maker = graph.node.iter().position(|n| n.op_type() == "DequantizeLinear" && n.output.first() == Some(name));
        let Some(maker) = maker.filter(|_| !read) else { continue };
        let Some(element) = element_of(&graph.node[maker], types) else { continue };
        let node = graph.node.remove(maker);
        retype(&mut graph.output[position], element);
        for n in &mut graph.node {
            let both = n.input.iter_mut().chain(&mut n.output);
            both.filter(|tensor| **tensor == node.input[0]).for_each(|tensor| tensor.clone_from(name));
        }
    }
}

fn retype(value: &mut ValueInfoProto, element: i32) {
    if let Some(TypeValue::TensorType(tensor)) = value.type_.as_mut().and_then(|t| t.value.as_mut()) {
        tensor.elem_type = Some(element);
    }
}
