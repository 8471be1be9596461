//! Creating and inspecting nodes.

use kvant_container::onnx::{DataType, GraphProto, NodeProto};

use super::set_attribute;

/// A node of the standard domain.
pub fn node(op_type: &str, name: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(op_type.to_owned()),
        name: Some(name.to_owned()),
        input: inputs.iter().map(|&s| s.to_owned()).collect(),
        output: outputs.iter().map(|&s| s.to_owned()).collect(),
        ..NodeProto::default()
    }
}

/// A Cast.
pub fn cast_node(name: &str, input: &str, output: &str, to: DataType) -> NodeProto {
    let mut made = node("Cast", name, &[input], &[output]);
    set_attribute(&mut made, "to", to as i64);
    made
}

/// The domain, the standard one always spelled as the empty string.
pub fn domain(node: &NodeProto) -> &str {
    match node.domain() {
        "ai.onnx" => "",
        other => other,
    }
}

/// Returns whether the node is of the standard domain.
pub fn is_standard(node: &NodeProto) -> bool {
    domain(node).is_empty()
}

/// Returns whether the node is this operator of the standard domain.
pub fn is(node: &NodeProto, op_type: &str) -> bool {
    is_standard(node) && node.op_type() == op_type
}

/// The input at a position; `None` where it is left out, at the end or by an empty name.
pub fn positional_input(node: &NodeProto, position: usize) -> Option<&str> {
    node.input.get(position).map(String::as_str).filter(|name| !name.is_empty())
}

/// The name of a node; without one, that of its first output.
pub fn called(node: &NodeProto) -> &str {
    let first = || node.output.first().map_or("", String::as_str);
    Some(node.name()).filter(|name| !name.is_empty()).unwrap_or_else(first)
}

/// The graphs inside of a node: the branches of If, the bodies of Loop and Scan.
pub fn bodies(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs))
}

/// The same, to be changed.
pub fn bodies_mut(node: &mut NodeProto) -> impl Iterator<Item = &mut GraphProto> {
    node.attribute.iter_mut().flat_map(|attribute| attribute.g.as_mut().into_iter().chain(&mut attribute.graphs))
}

/// Visits the nodes of a graph and of the graphs inside of them.
pub fn for_each_node<'g>(graph: &'g GraphProto, visit: &mut dyn FnMut(&'g NodeProto)) {
    for node in &graph.node {
        visit(node);
        bodies(node).for_each(|body| for_each_node(body, visit));
    }
}
