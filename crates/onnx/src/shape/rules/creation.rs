//! Operators that make tensors of attributes or of shapes alone.

use kvant_container::onnx::DataType;

use super::convolution::typed;
use super::{Row, named_type, one};
use crate::graph::attribute;
use crate::shape::node::Known;
use crate::shape::{Dim, ValueType};

pub(super) const ROWS: &[Row] = &[
    ("Constant", constant),
    ("ConstantOfShape", constant_of_shape),
    ("EyeLike", |n| typed(named_type(n, "dtype", n.data_type(0)), n.shape(0).map(<[Dim]>::to_vec))),
    ("Multinomial", multinomial),
    ("RandomNormal", random),
    ("RandomUniform", random),
    ("Range", range),
];

fn constant(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let length = |n: usize| vec![Dim::Known(n)];
    let [value] = &node.node.attribute[..] else { return None };
    match value.name() {
        "value" => Some(vec![ValueType::of_tensor(value.t.as_ref()?)]),
        "value_int" => one(DataType::INT64, vec![]),
        "value_ints" => one(DataType::INT64, length(value.ints.len())),
        "value_float" => one(DataType::FLOAT, vec![]),
        "value_floats" => one(DataType::FLOAT, length(value.floats.len())),
        "value_string" => one(DataType::STRING, vec![]),
        "value_strings" => one(DataType::STRING, length(value.strings.len())),
        _ => None,
    }
}

fn constant_of_shape(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let value = attribute(node.node, "value").and_then(|a| a.t.as_ref());
    let data_type = value.map_or(DataType::FLOAT, kvant_container::onnx::data_type);
    let unknown = || match node.shape(0)? {
        [Dim::Known(rank)] if *rank <= 64 => Some(vec![Dim::Unknown; *rank]),
        _ => None,
    };
    Some(vec![ValueType { data_type, shape: node.dims(0).or_else(unknown) }])
}

fn multinomial(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let samples = usize::try_from(node.int("sample_size", 1)).map_or(Dim::Unknown, Dim::Known);
    one(named_type(node, "dtype", DataType::INT32), vec![node.dim(0, 0).unwrap_or_default(), samples])
}

fn random(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let shape =
        node.list("shape").unwrap_or_default().iter().map(|&n| usize::try_from(n).map_or(Dim::Unknown, Dim::Known));
    one(named_type(node, "dtype", DataType::FLOAT), shape.collect())
}

/// From 0 in steps of 1 the range has as many elements as its limit says.
fn range(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let plain = node.integers(0).as_deref() == Some(&[0]) && node.integers(2).as_deref() == Some(&[1]);
    let limit = node.dims(1).filter(|_| plain).and_then(|limit| limit.first().cloned());
    one(node.data_type(0), vec![limit.unwrap_or_default()])
}
