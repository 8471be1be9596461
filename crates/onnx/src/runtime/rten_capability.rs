//! What rten computes right: a table of operators, each with what of it is refused. A node that is not in the table is refused.
//!
//! Measured with the node tests of ONNX 1.22 and rten 0.27: what is absent or conditional here was wrong, not supported, or
//! ignores an attribute or input without a word.

use kvant_container::onnx::{DataType, EnumOrUnknown, GraphProto, ModelProto, NodeProto, TensorProto, tensor_bytes};

use super::error::RuntimeError;
use crate::data::{Values, from_bytes, type_of};
use crate::graph::{
    Index, called, domain, float_attribute, int_attribute, ints_attribute, opset, positional_input, string_attribute,
};
use crate::known_operators::is_of_microsoft;
use crate::shape::{Types, infer};

/// What a check may look at.
struct Context<'g> {
    graph: &'g GraphProto,
    index: Index,
    opset: i64,
    types: &'g Types,
}

/// The reason that a node is refused.
type Check = fn(&Context<'_>, &NodeProto) -> Option<&'static str>;

/// Operators of the standard domain without conditions.
#[rustfmt::skip]
const ALWAYS: &[&str] = &[
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "CastLike", "Ceil", "Clip", "Concat",
    "Constant", "ConstantOfShape", "ConvInteger", "Cos", "Cosh", "CumSum", "DFT", "DepthToSpace", "DequantizeLinear",
    "Div", "Einsum", "Elu", "Equal", "Erf", "Exp", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherElements",
    "GatherND", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Greater", "GreaterOrEqual", "GridSample",
    "HardSigmoid", "HardSwish", "Identity", "If", "InstanceNormalization", "IsInf", "IsNaN", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "Loop", "LpNormalization", "MatMulInteger", "Max", "Mean", "Min", "Mod", "Mul", "Neg",
    "NonZero", "Not", "OneHot", "Or", "PRelu", "Pow", "QuantizeLinear", "RMSNormalization", "Range", "Reciprocal",
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "ReverseSequence", "RotaryEmbedding", "Round", "STFT",
    "ScatterElements", "ScatterND", "Shape", "Sigmoid", "Sin", "Sinh", "Size", "Slice", "Softplus", "Softsign", "Split",
    "Sqrt", "Squeeze", "Sub", "Sum", "Swish", "Tan", "Tanh", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze",
    "Upsample", "Where", "Xor",
];

/// Operators of the standard domain with conditions.
const SOMETIMES: &[(&str, Check)] = &[
    ("Attention", |_, node| (node.output.len() > 1).then_some("more than one output")),
    ("AveragePool", |_, node| same_lower(node).or_else(|| dilated(node))),
    ("BatchNormalization", |_, node| {
        let training = int_attribute(node, "training_mode").unwrap_or(0) != 0 || node.output.len() > 1;
        training.then_some("training mode")
    }),
    ("Cast", |_, node| cast(int_attribute(node, "to"))),
    ("Conv", |_, node| same_lower(node)),
    ("ConvTranspose", |_, node| {
        let padded = string_attribute(node, "auto_pad").is_some_and(|pad| pad.starts_with("SAME"));
        let stated = ints_attribute(node, "output_shape").is_some();
        (padded || stated).then_some("padding by the output's shape")
    }),
    ("Dropout", |context, node| {
        let training = positional_input(node, 2).is_some_and(|name| !is_false(context, name));
        training.then_some("training mode")
    }),
    ("GRU", |_, node| sequence_lengths(node)),
    ("LSTM", |_, node| {
        let peepholes = || positional_input(node, 7).map(|_| "peepholes");
        sequence_lengths(node).or_else(peepholes)
    }),
    ("LayerNormalization", |_, node| {
        let more = node.output.iter().skip(1).any(|name| !name.is_empty());
        more.then_some("outputs of mean and variance")
    }),
    ("LogSoftmax", coerced),
    ("MatMul", |context, node| {
        let vector = node.input.iter().any(|name| context.rank(name) == Some(1));
        vector.then_some("a product with a vector")
    }),
    ("MaxPool", |_, node| {
        let indices = (node.output.len() > 1).then_some("an output of indices");
        same_lower(node).or_else(|| dilated(node)).or(indices)
    }),
    ("Pad", |_, node| positional_input(node, 3).map(|_| "axes")),
    ("Resize", |context, node| {
        let cubic = string_attribute(node, "mode") == Some("cubic");
        cubic.then_some("cubic interpolation").or((context.opset < 11).then_some("a version before opset 11"))
    }),
    ("Softmax", coerced),
];

/// Nodes that are refused.
#[derive(Default)]
struct Refused {
    reasons: Vec<String>,
    /// Whether one has an operator that ONNX Runtime does not have either.
    everywhere: bool,
}

/// Checks a model.
pub(super) fn check(model: &ModelProto) -> Result<(), RuntimeError> {
    let mut refused = Refused::default();
    let opset = opset(model, "").unwrap_or(1);
    if let Some(graph) = model.graph.as_ref() {
        check_graph(graph, opset, &infer(model), &mut refused);
    }
    if !model.functions.is_empty() {
        refused.reasons.push("functions of the model's own".to_owned());
    }
    match refused.reasons.is_empty() {
        true => Ok(()),
        false => Err(RuntimeError::NotEmbedded { reasons: shortened(refused.reasons), everywhere: refused.everywhere }),
    }
}

fn shortened(mut refused: Vec<String>) -> Vec<String> {
    const SHOWN: usize = 10;
    let more = refused.len().saturating_sub(SHOWN);
    refused.truncate(SHOWN);
    if more > 0 {
        refused.push(format!("and {more} more"));
    }
    refused
}

fn check_graph(graph: &GraphProto, opset: i64, types: &Types, refused: &mut Refused) {
    let context = Context { graph, index: Index::new(graph), opset, types };
    for input in &graph.input {
        let (data_type, _) = type_of(input);
        if !is_held(data_type) {
            refused.reasons.push(format!("input `{}` of type {data_type:?}", input.name()));
        }
    }
    graph
        .initializer
        .iter()
        .filter_map(|tensor| constant(&context, tensor.name(), tensor))
        .for_each(|r| refused.reasons.push(r));
    for node in &graph.node {
        if let Some(why) = node_problem(&context, node) {
            refused.reasons.push(format!("{} `{}`: {why}", node.op_type(), called(node)));
            refused.everywhere |= domain(node) == "com.microsoft" && !is_of_microsoft(node.op_type());
        }
        for attribute in &node.attribute {
            let tensors = attribute.t.iter().filter_map(|t| constant(&context, node.output.first()?, t));
            refused.reasons.extend(tensors);
            attribute.g.iter().chain(&attribute.graphs).for_each(|graph| check_graph(graph, opset, types, refused));
        }
    }
}

fn node_problem(context: &Context<'_>, node: &NodeProto) -> Option<String> {
    if !domain(node).is_empty() {
        return Some(format!("an operator of {}", domain(node)));
    }
    let op = node.op_type();
    if ALWAYS.contains(&op) {
        return None;
    }
    match SOMETIMES.iter().find(|(known, _)| *known == op) {
        Some((_, check)) => check(context, node).map(str::to_owned),
        None => Some("an operator it does not have, or computes differently".to_owned()),
    }
}

/// Types rten has, and those it computes in a wider or narrower one without loss.
fn has(data_type: DataType) -> bool {
    use DataType::*;
    matches!(data_type, FLOAT | DOUBLE | FLOAT16 | INT64 | INT32 | BOOL | INT8 | UINT8 | UNDEFINED)
}

/// Types that values may come in: those, and bfloat16, which is widened on the way in.
fn is_held(data_type: DataType) -> bool {
    has(data_type) || data_type == DataType::BFLOAT16
}

/// A constant that rten cannot hold.
fn constant(context: &Context<'_>, name: &str, tensor: &TensorProto) -> Option<String> {
    let data_type = kvant_container::onnx::data_type(tensor);
    if !is_held(data_type) {
        return Some(format!("constant `{name}` of type {data_type:?}"));
    }
    // Only as an end of a slice is the largest integer as good as any that is larger than the axis.
    let sliced = || {
        let readers = context.index.consumers(name).iter();
        readers.filter_map(|&reader| context.graph.node.get(reader)).all(|node| node.op_type() == "Slice")
    };
    let wide = data_type == DataType::INT64 && beyond_32_bits(tensor) && !sliced();
    wide.then(|| format!("constant `{name}` with integers of more than 32 bits"))
}

fn beyond_32_bits(tensor: &TensorProto) -> bool {
    let Ok(bytes) = tensor_bytes(tensor) else { return true };
    match from_bytes(DataType::INT64, &bytes) {
        Some(Values::I64(values)) => values.iter().any(|&v| i32::try_from(v).is_err()),
        _ => true,
    }
}

fn cast(to: Option<i64>) -> Option<&'static str> {
    let to = to
        .and_then(|to| i32::try_from(to).ok())
        .map(|to| EnumOrUnknown::<DataType>::from_i32(to).enum_value_or_default());
    match to {
        Some(DataType::FLOAT16 | DataType::BFLOAT16) => Some("rounding to 16 bits, which it would leave out"),
        Some(to) if has(to) => None,
        _ => Some("a type it does not have"),
    }
}

fn same_lower(node: &NodeProto) -> Option<&'static str> {
    (string_attribute(node, "auto_pad") == Some("SAME_LOWER")).then_some("padding SAME_LOWER")
}

fn dilated(node: &NodeProto) -> Option<&'static str> {
    let dilated = ints_attribute(node, "dilations").is_some_and(|d| d.iter().any(|&d| d != 1));
    dilated.then_some("dilations")
}

fn sequence_lengths(node: &NodeProto) -> Option<&'static str> {
    let clip = float_attribute(node, "clip").is_some_and(|clip| clip != 0.0);
    positional_input(node, 4).map(|_| "lengths of sequences").or(clip.then_some("clip"))
}

/// Before opset 13 softmax was over all axes from the one named, which rten does not do.
fn coerced(context: &Context<'_>, node: &NodeProto) -> Option<&'static str> {
    if context.opset >= 13 {
        return None;
    }
    let axis = int_attribute(node, "axis").unwrap_or(1);
    let rank = positional_input(node, 0).and_then(|name| context.rank(name));
    let last = axis == -1 || rank.is_some_and(|rank| axis == rank as i64 - 1);
    (!last).then_some("softmax over several axes, as before opset 13")
}

fn is_false(context: &Context<'_>, name: &str) -> bool {
    let value = context.index.constant(context.graph, name).and_then(|t| tensor_bytes(t).ok().map(|b| b.into_owned()));
    value.is_some_and(|bytes| bytes.iter().all(|&b| b == 0))
}

impl Context<'_> {
    /// Number of axes of a tensor, where it follows from the model.
    fn rank(&self, name: &str) -> Option<usize> {
        let constant = self.index.constant(self.graph, name).map(|constant| constant.dims.len());
        constant.or_else(|| self.types.rank(name))
    }
}
