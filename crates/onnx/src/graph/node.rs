//! Making nodes and asking what they are.

use kvant_container::onnx::NodeProto;

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

/// The domain, the standard one always spelled as the empty string.
pub fn domain(node: &NodeProto) -> &str {
    match node.domain() {
        "ai.onnx" => "",
        other => other,
    }
}

/// Whether the node is of the standard domain.
pub fn is_standard(node: &NodeProto) -> bool {
    domain(node).is_empty()
}

/// Whether the node is this operator of the standard domain.
pub fn is(node: &NodeProto, op_type: &str) -> bool {
    is_standard(node) && node.op_type() == op_type
}

/// The input at a position; `None` where it is left out, at the end or by an empty name.
pub fn positional_input(node: &NodeProto, position: usize) -> Option<&str> {
    node.input.get(position).map(String::as_str).filter(|name| !name.is_empty())
}
