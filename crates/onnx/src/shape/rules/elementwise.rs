//! Operators whose outputs have the shape of their first input.

use kvant_container::onnx::DataType;

use super::{Row, like, named_type};
use crate::shape::ValueType;
use crate::shape::node::Known;

pub(super) const ROWS: &[Row] = &[
    ("Abs", same),
    ("Acos", same),
    ("Acosh", same),
    ("Asin", same),
    ("Asinh", same),
    ("Atan", same),
    ("Atanh", same),
    ("BatchNormalization", batch_normalization),
    ("Bernoulli", with_type),
    ("BitwiseNot", same),
    ("Cast", with_type),
    ("CastLike", |n| Some(vec![ValueType { data_type: n.data_type(1), ..like(n, 0) }])),
    ("Ceil", same),
    ("Celu", same),
    ("Clip", same),
    ("Cos", same),
    ("Cosh", same),
    ("CumSum", same),
    ("DequantizeLinear", dequantize),
    ("Dropout", |n| Some(vec![like(n, 0), ValueType { data_type: DataType::BOOL, ..like(n, 0) }])),
    ("DynamicQuantizeLinear", dynamic_quantize),
    ("Elu", same),
    ("Erf", same),
    ("Exp", same),
    ("Floor", same),
    ("Gelu", same),
    ("GroupNormalization", same),
    ("HardSigmoid", same),
    ("HardSwish", same),
    ("Hardmax", same),
    ("Identity", same),
    ("InstanceNormalization", same),
    ("IsInf", truth),
    ("IsNaN", truth),
    ("LRN", same),
    ("LayerNormalization", same),
    ("LeakyRelu", same),
    ("Log", same),
    ("LogSoftmax", same),
    ("LpNormalization", same),
    ("MeanVarianceNormalization", same),
    ("Mish", same),
    ("Neg", same),
    ("Not", same),
    ("PRelu", same),
    ("QuantizeLinear", quantize),
    ("RMSNormalization", same),
    ("RandomNormalLike", with_type),
    ("RandomUniformLike", with_type),
    ("Reciprocal", same),
    ("Relu", same),
    ("ReverseSequence", same),
    ("RotaryEmbedding", same),
    ("Round", same),
    ("Scatter", same),
    ("ScatterElements", same),
    ("ScatterND", same),
    ("Selu", same),
    ("Shrink", same),
    ("Sigmoid", same),
    ("Sign", same),
    ("Sin", same),
    ("Sinh", same),
    ("Softmax", same),
    ("Softplus", same),
    ("Softsign", same),
    ("Sqrt", same),
    ("Swish", same),
    ("Tan", same),
    ("Tanh", same),
    ("TensorScatter", same),
    ("ThresholdedRelu", same),
    ("Trilu", same),
];

pub(super) fn same(node: &Known<'_>) -> Option<Vec<ValueType>> {
    Some(vec![like(node, 0)])
}

fn truth(node: &Known<'_>) -> Option<Vec<ValueType>> {
    Some(vec![ValueType { data_type: DataType::BOOL, ..like(node, 0) }])
}

/// The element type named by `to` or `dtype`; the input's without either.
fn with_type(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let data_type = named_type(node, "to", named_type(node, "dtype", node.data_type(0)));
    Some(vec![ValueType { data_type, ..like(node, 0) }])
}

/// The statistics of training mode come after the result.
fn batch_normalization(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let statistic = like(node, 3);
    Some(vec![like(node, 0), statistic.clone(), statistic])
}

/// The zero point's type; without one `output_dtype` names it, and without that it is uint8.
pub(super) fn quantize(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let data_type = match node.has(2) {
        true => node.data_type(2),
        false => named_type(node, "output_dtype", DataType::UINT8),
    };
    Some(vec![ValueType { data_type, ..like(node, 0) }])
}

/// The scale's type, unless `output_dtype` names another.
pub(super) fn dequantize(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let data_type = named_type(node, "output_dtype", node.data_type(1));
    Some(vec![ValueType { data_type, ..like(node, 0) }])
}

fn dynamic_quantize(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let codes = ValueType { data_type: DataType::UINT8, ..like(node, 0) };
    Some(vec![codes, ValueType::new(DataType::FLOAT, vec![]), ValueType::new(DataType::UINT8, vec![])])
}
