//! Operators whose output has the shape that their inputs broadcast to.

use kvant_container::onnx::DataType;

use super::Row;
use crate::shape::dim::broadcast;
use crate::shape::node::Known;
use crate::shape::{Dim, ValueType};

pub(super) const ROWS: &[Row] = &[
    ("Add", arithmetic),
    ("And", truth),
    ("BitShift", arithmetic),
    ("BitwiseAnd", arithmetic),
    ("BitwiseOr", arithmetic),
    ("BitwiseXor", arithmetic),
    ("Div", arithmetic),
    ("Equal", truth),
    ("Greater", truth),
    ("GreaterOrEqual", truth),
    ("Less", truth),
    ("LessOrEqual", truth),
    ("Max", arithmetic),
    ("Mean", arithmetic),
    ("Min", arithmetic),
    ("Mod", arithmetic),
    ("Mul", arithmetic),
    ("Or", truth),
    ("Pow", arithmetic),
    ("Sub", arithmetic),
    ("Sum", arithmetic),
    ("Where", |n| Some(vec![ValueType { data_type: n.data_type(1), shape: all(n) }])),
    ("Xor", truth),
];

/// The shape all inputs broadcast to.
fn all(node: &Known<'_>) -> Option<Vec<Dim>> {
    (0..node.node.input.len()).try_fold(Vec::new(), |shape, i| Some(broadcast(&shape, node.shape(i)?)))
}

pub(super) fn arithmetic(node: &Known<'_>) -> Option<Vec<ValueType>> {
    // The broadcasting of opsets before 7 keeps the first input's shape.
    let shape = if node.opset < 7 { node.shape(0).map(<[Dim]>::to_vec) } else { all(node) };
    Some(vec![ValueType { data_type: node.data_type(0), shape }])
}

fn truth(node: &Known<'_>) -> Option<Vec<ValueType>> {
    arithmetic(node).map(|made| made.into_iter().map(|t| ValueType { data_type: DataType::BOOL, ..t }).collect())
}
