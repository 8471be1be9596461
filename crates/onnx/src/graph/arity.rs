//! The number of inputs and outputs of rewritten operators: a pass may then take the first input for
//! given. Not a schema; the others need one input and one output only.

use kvant_container::onnx::NodeProto;

use super::error::GraphError;
use super::{called, is_standard};

/// Operators that need no input, or may leave out the first.
const WITHOUT_INPUT: [&str; 6] = ["Constant", "Loop", "Optional", "RandomNormal", "RandomUniform", "SequenceEmpty"];

/// Operators of at least two inputs and one output.
#[rustfmt::skip]
const BINARY: [&str; 22] = [
    "Add", "And", "Conv", "ConvTranspose", "Div", "Equal", "Expand", "Gather", "Gemm", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual", "MatMul", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Tile", "Xor",
];

/// Operators of at least one input and one output.
#[rustfmt::skip]
const UNARY: [&str; 45] = [
    "Abs", "AveragePool", "Cast", "Ceil", "Clip", "Concat", "ConstantOfShape", "Cos", "Erf", "Exp", "Flatten", "Floor",
    "GlobalAveragePool", "Hardmax", "Identity", "Log", "LogSoftmax", "Max", "Mean", "Min", "Neg", "Not", "Pad", "Reciprocal",
    "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "Relu", "Reshape", "Resize",
    "Shape", "Sigmoid", "Size", "Slice", "Softmax", "Sqrt", "Squeeze", "Sum", "Tanh", "Transpose", "Unsqueeze",
];

/// Least inputs and most outputs.
fn limits(operator: &str) -> (usize, usize) {
    match operator {
        "BatchNormalization" => (5, 5),
        "Dropout" => (1, 2),
        _ if BINARY.contains(&operator) => (2, 1),
        _ if UNARY.contains(&operator) => (1, 1),
        _ if WITHOUT_INPUT.contains(&operator) => (0, usize::MAX),
        _ => (1, usize::MAX),
    }
}

/// Checks the numbers of inputs and outputs of a node; the inputs it needs must have names.
pub(super) fn check_arity(node: &NodeProto) -> Result<(), GraphError> {
    let (inputs, outputs) = if is_standard(node) { limits(node.op_type()) } else { (0, usize::MAX) };
    let label = || called(node).to_owned();
    let operator = || node.op_type().chars().take(60).collect();
    let given = node.input.iter().take_while(|name| !name.is_empty()).count();
    if given < inputs {
        return Err(GraphError::TooFewInputs { node: label(), operator: operator(), needs: inputs, has: given });
    }
    let named = match outputs {
        1 => node.output.first().is_some_and(|name| !name.is_empty()),
        _ => node.output.iter().any(|name| !name.is_empty()),
    };
    match named && node.output.len() <= outputs {
        true => Ok(()),
        false => Err(GraphError::Outputs { node: label(), operator: operator(), has: node.output.len() }),
    }
}
