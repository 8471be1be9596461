//! Integer operators in place of float ones between Q/DQ pairs.

use std::collections::HashMap;

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, byte_len, shape, tensor};

use super::{ToolError, inlined};
use crate::graph::{
    Index, Names, NodeNames, STANDARD_DOMAIN, is_dequantize_linear, is_qdq, is_quantize_linear, opset, positional_input,
};
use crate::shape::infer;
use crate::writing::{fuse, lift_constants};

/// The results of [`to_qoperator`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Joined {
    /// Nodes that compute with codes now or move them.
    pub operators: usize,
    /// Nodes that still read dequantized values: they have no integer operator, or not with their types.
    pub left: Vec<String>,
}

/// The opset from which on there is QuantizeLinear.
const FIRST_OPSET: i64 = 10;

/// Replaces float operators between DequantizeLinear and QuantizeLinear by integer operators, as `kvant quantize` does for the QOperator
/// layout. Whatever has no integer operator, and bodies of nodes, keep their pairs.
///
/// # Errors
/// [`ToolError::NothingToJoin`] for a graph in which nothing is replaced.
pub fn to_qoperator(model: &mut ModelProto) -> Result<Joined, ToolError> {
    let names = NodeNames::of(&model.graph);
    let mut made = inlined(model)?;
    lift_constants(&mut made);
    let is_known = opset(&made, STANDARD_DOMAIN).is_some_and(|version| version >= FIRST_OPSET);
    if is_known {
        spell_out(&mut made);
    }
    let operators = fuse(&mut made)?;
    let left = left(&made.graph);
    if operators == 0 {
        return Err(ToolError::NothingToJoin { left: left.len() });
    }
    if let Some(graph) = made.graph.as_mut() {
        names.tell_apart(graph);
    }
    *model = made;
    Ok(Joined { operators, left })
}

/// Rewrites 8-bit pairs and biases to standard operators with explicit zero points, the form that [`fuse`] recognizes.
fn spell_out(model: &mut ModelProto) {
    let types = infer(model);
    let Some(graph) = model.graph.as_mut() else { return };
    let index = Index::new(graph);
    let mut names = Names::of(graph);
    let mut zeros: HashMap<(DataType, Vec<usize>), String> = HashMap::new();
    let mut constants = Vec::new();
    let mut pairs: Vec<NodeProto> = std::mem::take(&mut graph.node);
    for pair in pairs.iter_mut().filter(|node| is_qdq(node)) {
        let codes = if is_quantize_linear(pair) { pair.output.first() } else { pair.input.first() };
        let of_zero_point = positional_input(pair, 2).and_then(|zero| types.data_type(zero));
        let of_codes = || codes.and_then(|codes| types.data_type(codes));
        let element = of_zero_point.or_else(of_codes);
        if let Some(element) =
            element.filter(|&element| matches!(element, DataType::INT8 | DataType::UINT8 | DataType::INT32))
        {
            pair.domain = None;
            let scale = pair.input.get(1).and_then(|scale| index.initializer(scale)).map(|at| &graph.initializer[at]);
            let sizes = scale.and_then(|scale| shape(scale).ok());
            if let Some(sizes) = sizes.filter(|_| positional_input(pair, 2).is_none()) {
                let zero = zeros.entry((element, sizes.clone())).or_insert_with(|| {
                    let name = names.fresh("zero_point");
                    constants.push(zero_tensor(&name, element, &sizes));
                    name
                });
                pair.input.truncate(2);
                pair.input.push(zero.clone());
            }
        }
    }
    graph.node = pairs;
    graph.initializer.append(&mut constants);
}

/// A constant of zeros.
pub(super) fn zero_tensor(name: &str, element: DataType, sizes: &[usize]) -> kvant_container::onnx::TensorProto {
    let count = sizes.iter().product::<usize>();
    let bytes = byte_len(element, count as u64).unwrap_or(0);
    tensor(name, element, sizes, vec![0u8; bytes])
}

/// Nodes of the main graph that read what DequantizeLinear makes and compute with it.
fn left(graph: &GraphProto) -> Vec<String> {
    let index = Index::new(graph);
    let is_dequantized = |name: &String| index.producer(name).is_some_and(|at| is_dequantize_linear(&graph.node[at]));
    let reads = |node: &&NodeProto| !is_qdq(node) && node.input.iter().any(is_dequantized);
    graph.node.iter().filter(reads).map(|node| crate::graph::called(node).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{check, node, set_attribute};
    use crate::test_models::{floats, model, typed};

    /// x -> Q/DQ -> MatMul with a constant -> Q/DQ -> Softplus -> y; zero points are left out where they are zero.
    fn pairs(axis: i64) -> ModelProto {
        let mut weight = node("DequantizeLinear", "wd", &["w", "ws"], &["wf"]);
        set_attribute(&mut weight, "axis", axis);
        let nodes = vec![
            node("QuantizeLinear", "q", &["x", "s"], &["c"]),
            node("DequantizeLinear", "d", &["c", "s"], &["f"]),
            weight,
            node("MatMul", "m", &["f", "wf"], &["h"]),
            node("QuantizeLinear", "r", &["h", "s"], &["e"]),
            node("DequantizeLinear", "t", &["e", "s"], &["g"]),
            node("Softplus", "p", &["g"], &["y"]),
        ];
        let constants = vec![
            floats("s", &[], &[0.5]),
            tensor("w", DataType::INT8, &[2, 2], vec![1u8; 4]),
            floats("ws", &[2], &[0.25, 0.5]),
        ];
        let mut made = model(17, nodes, constants, &[], &[]);
        let graph = made.graph.as_mut().unwrap();
        (graph.input, graph.output) = (vec![typed("x", &[1, 2])], vec![typed("y", &[1, 2])]);
        made
    }

    #[test]
    fn pairs_without_zero_points_become_integer_operators() {
        let mut made = pairs(1);
        assert_eq!(to_qoperator(&mut made).unwrap(), Joined { operators: 1, left: vec!["p".to_owned()] });
        assert_eq!(check(&made), Ok(()));
        let operators: Vec<&str> = made.graph.node.iter().map(|n| n.op_type()).collect();
        assert_eq!(operators, ["QuantizeLinear", "QLinearMatMul", "DequantizeLinear", "Softplus"]);
        assert_eq!(made.graph.node[1].input[3], "w");
    }

    #[test]
    fn scales_along_the_wrong_axis_keep_their_pairs() {
        let mut made = pairs(0);
        let before = made.clone();
        assert!(matches!(to_qoperator(&mut made), Err(ToolError::NothingToJoin { left: 2 })));
        assert_eq!(made, before);
    }
}
