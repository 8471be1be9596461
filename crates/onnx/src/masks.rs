//! Tensors that carry attention masks: a huge negative number masks a position. Codes for both it and the values beside
//! it do not exist, so such tensors stay in float.

use std::collections::HashSet;

use kvant_container::onnx::{DataType, GraphProto, NodeProto, TensorProto, data_type, tensor_bytes};

use crate::graph::{Index, is_standard};

/// From this magnitude on a constant is a mask and no value.
pub const HUGE: f32 = 1e30;

/// Constants larger than this are weights, not masks: they are not searched.
const LARGEST_SEARCHED: usize = 1 << 24;

/// A constant at least this far below zero is a mask if the sum goes into a Softmax.
const FAR: f32 = -9e3;

/// Whether an added constant may be a mask: no pass turns it into a bias, because its product could not be quantized then.
pub fn may_mask(values: impl IntoIterator<Item = f64>) -> bool {
    values.into_iter().any(|value| value.abs() >= f64::from(HUGE) || value <= f64::from(FAR))
}

/// The tensors that hold mask values, constants among them.
pub fn masked(graph: &GraphProto, index: &Index) -> HashSet<String> {
    let scores = before_softmax(graph);
    let mask = |node: &NodeProto, name: &String| {
        let into_softmax = passes_on(node) && node.output.iter().any(|output| scores.contains(output));
        // An infinite weight of a product is a damaged weight, which is refused by its name.
        let is_huge = |v: f32| v.abs() >= HUGE && (v.is_finite() || !is_product(node));
        let is_mask = |tensor| is_any(tensor, |v| is_huge(v) || into_softmax && v <= FAR);
        index.constant(graph, name).is_some_and(is_mask)
    };
    let read = graph.node.iter().flat_map(|node| node.input.iter().map(move |name| (node, name)));
    let mut masked: HashSet<String> =
        read.filter(|(node, name)| mask(node, name)).map(|(_, name)| name.clone()).collect();
    for node in graph.node.iter().filter(|node| passes_on(node)) {
        if node.input.iter().any(|name| masked.contains(name)) || makes(node) {
            masked.extend(node.output.iter().cloned());
        }
    }
    masked
}

/// The tensors that go into a Softmax, some of them through operators that pass masks on.
fn before_softmax(graph: &GraphProto) -> HashSet<String> {
    let mut before = HashSet::new();
    for node in graph.node.iter().rev() {
        let softmax = is_standard(node) && node.op_type() == "Softmax";
        if softmax || passes_on(node) && node.output.iter().any(|output| before.contains(output)) {
            before.extend(node.input.iter().cloned());
        }
    }
    before
}

/// Operators whose output has the mask of an input. Softmax ends it; Clip's bounds and Pad's filling are not masks.
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

/// Returns whether a node multiplies its input with a weight.
pub fn is_product(node: &NodeProto) -> bool {
    is_standard(node) && ["Conv", "ConvTranspose", "Gemm", "MatMul"].contains(&node.op_type())
}

fn makes(node: &NodeProto) -> bool {
    let value = node.attribute.iter().find(|a| a.name() == "value").and_then(|a| a.t.as_ref());
    node.op_type() == "ConstantOfShape" && value.is_some_and(|tensor| is_any(tensor, |v| v.abs() >= HUGE))
}

/// Returns whether any value of a float constant satisfies a predicate.
fn is_any(tensor: &TensorProto, wanted: impl Fn(f32) -> bool) -> bool {
    if data_type(tensor) != DataType::FLOAT {
        return false;
    }
    let Ok(bytes) = tensor_bytes(tensor) else { return false };
    let value = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    bytes.len() <= LARGEST_SEARCHED && bytes.chunks_exact(4).any(|b| wanted(value(b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn infinite_weights_of_products_are_no_masks() {
        let weight = TensorProto {
            name: Some("w".to_owned()),
            data_type: Some(DataType::FLOAT as i32),
            dims: vec![2],
            float_data: vec![1.0, f32::INFINITY],
            ..TensorProto::default()
        };
        let masked_by = |op: &str| {
            let node = NodeProto {
                op_type: Some(op.to_owned()),
                input: vec!["x".to_owned(), "w".to_owned()],
                output: vec!["y".to_owned()],
                ..NodeProto::default()
            };
            let graph = GraphProto { node: vec![node], initializer: vec![weight.clone()], ..GraphProto::default() };
            masked(&graph, &Index::new(&graph)).contains("w")
        };
        assert!(masked_by("Add") && !masked_by("MatMul"));
    }
}
