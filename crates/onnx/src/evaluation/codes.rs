//! Graphs that take and give codes: with which scale and zero point floats become what an input takes, and what an output
//! gives becomes floats. They are read from the node that the codes go into or come from.

use std::collections::HashMap;

use kvant_container::onnx::{DataType, GraphProto, NodeProto};

use crate::data::{Array, type_of};
use crate::graph::{Index, int_attribute, is_standard, positional_input};
use crate::kernel::KernelError;
use crate::kernel::linear::{Parameters, constant, dequantize, quantize};

/// Operators that move codes without changing them, their first input to their first output.
const MOVING: &[&str] =
    &["Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"];

/// The codes of a tensor at an end of a graph.
#[derive(Debug, Clone)]
struct CodeTracer {
    data_type: DataType,
    scale: Array<'static>,
    zero_point: Option<Array<'static>>,
    axis: i64,
}

impl CodeTracer {
    fn parameters(&self) -> Parameters<'_> {
        let zero_point = self.zero_point.as_ref().map(Array::view);
        Parameters { scale: self.scale.view(), zero_point, axis: self.axis, block: 0 }
    }
}

/// The integer inputs and outputs of a graph with a known scale.
#[derive(Debug, Default)]
pub(super) struct EndCodes(HashMap<String, CodeTracer>);

impl EndCodes {
    /// Reads a graph.
    pub fn of(graph: &GraphProto) -> Self {
        let index = Index::new(graph);
        let integer = |data_type: DataType| {
            use DataType::*;
            matches!(data_type, INT8 | UINT8 | INT16 | UINT16 | INT32 | UINT32).then_some(data_type)
        };
        let reader = |name: &str| read_codes(graph, &index, name);
        let maker = |name: &str| made_codes(graph, &index, name);
        let inputs = graph.input.iter().filter_map(|v| Some((v.name(), integer(type_of(v).0)?, reader(v.name())?)));
        let outputs = graph.output.iter().filter_map(|v| Some((v.name(), integer(type_of(v).0)?, maker(v.name())?)));
        let codes = inputs.chain(outputs).filter_map(|(name, data_type, (node, at))| {
            let array = |at: usize| constant(index.constant(graph, positional_input(node, at)?)?);
            let axis = int_attribute(node, "axis").unwrap_or(1);
            Some((name.to_owned(), CodeTracer { data_type, scale: array(at)?, zero_point: array(at + 1), axis }))
        });
        Self(codes.collect())
    }

    /// The codes of floats for an input; `None` where it takes none that are known.
    pub fn quantized(&self, input: &str, values: &Array<'_>) -> Option<Result<Array<'static>, KernelError>> {
        let codes = self.0.get(input)?;
        Some(quantize(values, &codes.parameters(), codes.data_type))
    }

    /// The dequantized values of an output; `None` if it is not known to hold codes.
    pub fn dequantized(&self, output: &str, values: &Array<'_>) -> Option<Result<Array<'static>, KernelError>> {
        Some(dequantize(values, &self.0.get(output)?.parameters()))
    }
}

/// The node that computes with the codes of a tensor, and the position of their scale among its inputs.
fn read_codes<'g>(graph: &'g GraphProto, index: &Index, tensor: &str) -> Option<(&'g NodeProto, usize)> {
    let mut name = tensor.to_owned();
    for _ in 0..graph.node.len() {
        let node = &graph.node[*index.consumers(&name).first()?];
        let at = node.input.iter().position(|input| *input == name)?;
        if node.op_type() == "DequantizeLinear" || node.op_type().starts_with("QLinear") || node.op_type() == "QGemm" {
            return Some((node, at + 1));
        }
        name = moved(node).filter(|_| at == 0)?.1.to_owned();
    }
    None
}

/// The node that makes the codes of a tensor, and the position of their scale among its inputs.
fn made_codes<'g>(graph: &'g GraphProto, index: &Index, tensor: &str) -> Option<(&'g NodeProto, usize)> {
    let mut name = tensor.to_owned();
    for _ in 0..graph.node.len() {
        let node = &graph.node[index.producer(&name)?];
        match node.op_type() {
            "QuantizeLinear" => return Some((node, 1)),
            "QLinearConcat" => return Some((node, 0)),
            // Scale and zero point of what they make come last; a convolution may have a bias behind.
            "QLinearConv" | "QLinearMatMul" => return Some((node, 6)),
            "QGemm" => return Some((node, 7)),
            op if op.starts_with("QLinear") => return Some((node, node.input.len().checked_sub(2)?)),
            _ => name = moved(node)?.0.to_owned(),
        }
    }
    None
}

fn moved(node: &NodeProto) -> Option<(&str, &str)> {
    let moves = is_standard(node) && MOVING.contains(&node.op_type());
    moves.then(|| Some((positional_input(node, 0)?, node.output.first()?.as_str())))?
}

#[cfg(test)]
mod tests {
    use kvant_container::onnx::tensor;

    use super::*;
    use crate::graph::node;
    use crate::shape::{Dim, ValueType};
    use crate::test_models::floats;

    #[test]
    fn codes_are_found_through_moving_operators() {
        let value = |name: &str| ValueType::new(DataType::UINT8, vec![Dim::Known(2)]).to_proto(name).unwrap();
        let graph = GraphProto {
            node: vec![
                node("Reshape", "r", &["x", "shape"], &["m"]),
                node("QLinearConv", "c", &["m", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], &["n"]),
                node("Transpose", "t", &["n"], &["y"]),
            ],
            initializer: vec![
                floats("xs", &[], &[0.5]),
                tensor("xz", DataType::UINT8, &[], vec![10]),
                floats("ys", &[], &[2.0]),
                tensor("yz", DataType::UINT8, &[], vec![1]),
            ],
            input: vec![value("x")],
            output: vec![value("y")],
            ..GraphProto::default()
        };
        let codes = EndCodes::of(&graph);
        let x = Array::of(vec![2], vec![1.0f32, -100.0]).unwrap();
        let quantized = codes.quantized("x", &x).unwrap().unwrap();
        assert_eq!(quantized, Array::of(vec![2], vec![12u8, 0]).unwrap());
        let y = codes.dequantized("y", &quantized).unwrap().unwrap();
        assert_eq!(y, Array::of(vec![2], vec![22.0f32, -2.0]).unwrap());
        assert!(codes.quantized("y2", &x).is_none());
    }
}
