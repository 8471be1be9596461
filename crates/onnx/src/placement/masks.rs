//! Tensors that carry attention masks: a huge negative number stands for "do not look". Codes for both it and the values beside
//! it do not exist, so such tensors stay in float.

use std::collections::HashSet;

use kvant_container::onnx::{DataType, GraphProto, NodeProto, TensorProto, data_type, tensor_bytes};

use crate::graph::{Index, is_standard};

/// From this magnitude on a constant is a mask and no value.
pub const HUGE: f32 = 1e30;

/// Constants larger than this are weights, not masks: they are not searched.
const LARGEST_SEARCHED: usize = 1 << 24;

/// The tensors that hold mask values, constants among them.
pub fn masked(graph: &GraphProto, index: &Index) -> HashSet<String> {
    let huge = |name: &String| index.constant(graph, name).is_some_and(is_huge);
    let mut masked: HashSet<String> =
        graph.node.iter().flat_map(|node| &node.input).filter(|name| huge(name)).cloned().collect();
    for node in graph.node.iter().filter(|node| passes_on(node)) {
        if node.input.iter().any(|name| masked.contains(name)) || makes(node) {
            masked.extend(node.output.iter().cloned());
        }
    }
    masked
}

/// Operators whose output has the mask of an input. Softmax ends it; Clip's bounds and Pad's filling are no masks.
fn passes_on(node: &NodeProto) -> bool {
    const PASSING: &[&str] = &[
        "Add",
        "Cast",
        "Concat",
        "ConstantOfShape",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Max",
        "Min",
        "Mul",
        "Neg",
        "Reshape",
        "ScatterND",
        "Slice",
        "Squeeze",
        "Sub",
        "Tile",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Where",
    ];
    is_standard(node) && PASSING.contains(&node.op_type())
}

fn makes(node: &NodeProto) -> bool {
    let value = node.attribute.iter().find(|a| a.name() == "value").and_then(|a| a.t.as_ref());
    node.op_type() == "ConstantOfShape" && value.is_some_and(is_huge)
}

fn is_huge(tensor: &TensorProto) -> bool {
    if data_type(tensor) != DataType::FLOAT {
        return false;
    }
    let Ok(bytes) = tensor_bytes(tensor) else { return false };
    let value = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    bytes.len() <= LARGEST_SEARCHED && bytes.chunks_exact(4).any(|b| value(b).abs() >= HUGE)
}
