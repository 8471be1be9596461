//! Which operators compute in 16-bit floats: from which opset their types allow it, and which stay in f32 all the same.
//!
//! What is in no row stays in f32: operators of other domains, recurrent ones and those that kernels have in f32 only (LSTM,
//! GRU, RNN, NonMaxSuppression, TopK, RoiAlign), sums along an axis and positions, for which 11 bits are too few (Range,
//! CumSum, TopK), random numbers and windows, quantizers. So do powers and sums of squares, which leave float16's range soon.
//! Source: type constraints in ONNX, Operators.md.

use kvant_container::onnx::NodeProto;

use crate::graph::{attribute, is_standard};
use crate::recipe::FloatType;

/// Operators that are alike: the opset from which they take float16 (10: from the lowest that is read), and bfloat16.
struct OperatorRow {
    float16: i64,
    bfloat16: i64,
    op_types: &'static [&'static str],
}

const fn row(float16: i64, bfloat16: i64, op_types: &'static [&'static str]) -> OperatorRow {
    OperatorRow { float16, bfloat16, op_types }
}

/// No opset has it.
const NEVER: i64 = i64::MAX;

impl OperatorRow {
    fn first_opset(&self, to: FloatType) -> Option<i64> {
        let first = if to == FloatType::Float16 { self.float16 } else { self.bfloat16 };
        (first != NEVER).then_some(first)
    }
}

#[rustfmt::skip]
const ROWS: &[OperatorRow] = &[
    row(10, 13, &[
        "Abs", "Add", "ArgMax", "ArgMin", "Cast", "Ceil", "Concat", "Constant", "DepthToSpace", "Div", "Dropout",
        "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather", "Gemm", "Hardmax", "Identity", "IsNaN", "Log", "LogSoftmax",
        "MatMul", "Mod", "Mul", "Neg", "NonZero", "Pad", "Reciprocal", "ReduceMax", "ReduceMin", "Relu", "Reshape", "Resize",
        "Shape", "Sigmoid", "Sign", "Size", "Slice", "Softmax", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum",
        "Tanh", "Tile", "Transpose", "Unsqueeze", "Greater", "Less", "LRN",
    ]),
    row(11, 13, &["Equal", "GatherElements", "GatherND", "ScatterElements", "ScatterND"]),
    row(12, 13, &["Max", "Min"]),
    row(12, 16, &["GreaterOrEqual", "LessOrEqual"]),
    row(10, 14, &["BatchNormalization"]),
    row(14, 14, &["Trilu"]),
    row(15, 15, &["CastLike"]),
    // ONNX Runtime makes a Where of a Clip of bfloat16, whatever the opset.
    row(10, 16, &["Clip", "If", "LeakyRelu", "Loop", "PRelu", "Scan", "Where"]),
    row(17, 17, &["LayerNormalization"]),
    row(18, 18, &["CenterCropPad", "Col2Im"]),
    row(10, 20, &["ConstantOfShape"]),
    row(20, 20, &["AffineGrid", "Gelu", "IsInf"]),
    row(21, 21, &["GroupNormalization"]),
    row(10, 22, &[
        "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "AveragePool", "Conv", "ConvTranspose", "Cos", "Cosh", "Elu",
        "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "InstanceNormalization", "LpNormalization", "MaxPool", "MaxUnpool",
        "Selu", "Sin", "Sinh", "Softplus", "Softsign", "Tan", "ThresholdedRelu",
    ]),
    row(11, 22, &["Round"]),
    row(14, 22, &["HardSwish"]),
    row(16, 22, &["GridSample"]),
    row(18, 22, &["Mish"]),
    row(19, 22, &["DeformConv"]),
    row(23, 23, &["Attention", "RMSNormalization", "RotaryEmbedding"]),
    row(24, 24, &["Swish", "TensorScatter"]),
    row(10, NEVER, &["Compress", "OneHot", "ReverseSequence", "Scatter"]),
    row(12, NEVER, &["Einsum"]),
];

/// The opset from which a node may compute in a type; `None` if there is none.
pub fn first_opset(node: &NodeProto, to: FloatType) -> Option<i64> {
    let is_sparse = attribute(node, "sparse_value").is_some();
    let row = ROWS.iter().find(|row| row.op_types.contains(&node.op_type()));
    row.filter(|_| is_standard(node) && !is_sparse)?.first_opset(to)
}

/// Inputs that are f32 whatever the others are: the scales of Resize, and for it what its older versions call so.
pub fn always_wide(node: &NodeProto, opset: i64) -> &'static [usize] {
    match node.op_type() {
        "Resize" if opset < 11 => &[1],
        "Resize" => &[1, 2],
        _ => &[],
    }
}

/// Operators that read or make sequences of tensors.
pub fn is_of_sequences(node: &NodeProto) -> bool {
    is_standard(node) && node.op_type().contains("Sequence") && node.op_type() != "ReverseSequence"
}

/// Operators that go on in f32 where all they read is f32 or constant: what stands between a sum of squares and its root.
pub fn goes_on(node: &NodeProto) -> bool {
    is_standard(node) && matches!(node.op_type(), "Add" | "Clip" | "Max" | "Reciprocal" | "Sqrt")
}

/// Operators that angles are computed from positions with.
pub fn makes_angles(node: &NodeProto) -> bool {
    const MAKING: &[&str] = &[
        "Add",
        "Cast",
        "Concat",
        "Cos",
        "Div",
        "Einsum",
        "Expand",
        "Identity",
        "MatMul",
        "Mul",
        "Reshape",
        "Sin",
        "Slice",
        "Squeeze",
        "Sub",
        "Tile",
        "Transpose",
        "Unsqueeze",
    ];
    is_standard(node) && MAKING.contains(&node.op_type())
}
