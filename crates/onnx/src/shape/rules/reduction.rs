//! Operators that take axes together.

use kvant_container::onnx::DataType;

use super::convolution::typed;
use super::{Row, shaped};
use crate::shape::node::{Known, axis};
use crate::shape::{Dim, ValueType};

pub(super) const ROWS: &[Row] = &[
    ("ArgMax", |n| typed(DataType::INT64, arg(n))),
    ("ArgMin", |n| typed(DataType::INT64, arg(n))),
    ("ReduceL1", |n| shaped(n, reduce(n))),
    ("ReduceL2", |n| shaped(n, reduce(n))),
    ("ReduceLogSum", |n| shaped(n, reduce(n))),
    ("ReduceLogSumExp", |n| shaped(n, reduce(n))),
    ("ReduceMax", |n| shaped(n, reduce(n))),
    ("ReduceMean", |n| shaped(n, reduce(n))),
    ("ReduceMin", |n| shaped(n, reduce(n))),
    ("ReduceProd", |n| shaped(n, reduce(n))),
    ("ReduceSum", |n| shaped(n, reduce(n))),
    ("ReduceSumSquare", |n| shaped(n, reduce(n))),
    ("TopK", top),
];

fn without(shape: &[Dim], over: &[usize], keep: bool) -> Vec<Dim> {
    let kept = shape.iter().enumerate().filter(|(i, _)| keep || !over.contains(i));
    kept.map(|(i, dim)| if over.contains(&i) { Dim::Known(1) } else { dim.clone() }).collect()
}

fn reduce(node: &Known<'_>) -> Option<Vec<Dim>> {
    let shape = node.shape(0)?;
    let keep = node.int("keepdims", 1) != 0;
    let given = node.list("axes").is_some() || node.has(1);
    let axes = match (given, node.ints("axes", 1)) {
        (true, None) => return keep.then(|| vec![Dim::Unknown; shape.len()]),
        (_, axes) => axes.unwrap_or_default(),
    };
    if axes.is_empty() && node.int("noop_with_empty_axes", 0) != 0 {
        return Some(shape.to_vec());
    }
    let over = match axes[..] {
        [] => (0..shape.len()).collect(),
        _ => axes.iter().map(|&a| axis(a, shape.len())).collect::<Option<Vec<_>>>()?,
    };
    Some(without(shape, &over, keep))
}

fn arg(node: &Known<'_>) -> Option<Vec<Dim>> {
    let shape = node.shape(0)?;
    Some(without(shape, &[axis(node.int("axis", 0), shape.len())?], node.int("keepdims", 1) != 0))
}

fn top(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let mut shape = node.shape(0)?.to_vec();
    let at = axis(node.int("axis", -1), shape.len())?;
    let attribute = crate::graph::int_attribute(node.node, "k");
    let count = attribute.or_else(|| node.integers(1)?.first().copied()).and_then(|k| usize::try_from(k).ok());
    shape[at] = count.map_or(Dim::Unknown, Dim::Known);
    Some(vec![ValueType::new(node.data_type(0), shape.clone()), ValueType::new(DataType::INT64, shape)])
}
