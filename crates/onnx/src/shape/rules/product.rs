//! Matrix products.

use kvant_container::onnx::DataType;

use super::convolution::typed;
use super::{Row, shaped};
use crate::graph::string_attribute;
use crate::shape::dim::broadcast;
use crate::shape::node::Known;
use crate::shape::{Dim, ValueType};

pub(super) const ROWS: &[Row] = &[
    ("Attention", attention),
    ("Einsum", |n| shaped(n, einsum(n))),
    ("Gemm", |n| shaped(n, gemm(n))),
    ("MatMul", |n| shaped(n, matmul(n, 0, 1))),
    ("MatMulInteger", |n| typed(DataType::INT32, matmul(n, 0, 1))),
    ("QLinearMatMul", |n| typed(n.data_type(7), matmul(n, 0, 3))),
];

/// The product of two inputs; vectors are rows on the left and columns on the right.
pub(super) fn matmul(node: &Known<'_>, left: usize, right: usize) -> Option<Vec<Dim>> {
    let (a, b) = (node.shape(left)?, node.shape(right)?);
    match (a, b) {
        ([_], [_]) => Some(vec![]),
        ([_], [batch @ .., _, columns]) => Some([batch, std::slice::from_ref(columns)].concat()),
        ([rest @ .., _], [_]) => Some(rest.to_vec()),
        ([outer @ .., rows, _], [batch @ .., _, columns]) => {
            Some([&broadcast(outer, batch)[..], &[rows.clone(), columns.clone()]].concat())
        }
        _ => None,
    }
}

pub(super) fn gemm(node: &Known<'_>) -> Option<Vec<Dim>> {
    let dim = |input: usize, transposed: bool, axis: i64| node.dim(input, if transposed { 1 - axis } else { axis });
    let (a, b) = (node.int("transA", 0) != 0, node.int("transB", 0) != 0);
    Some(vec![dim(0, a, 0).unwrap_or_default(), dim(1, b, 1).unwrap_or_default()])
}

/// An equation with its result spelled out; the dimensions are those of the letters.
fn einsum(node: &Known<'_>) -> Option<Vec<Dim>> {
    let equation: String = string_attribute(node.node, "equation")?.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, output) = equation.split_once("->")?;
    let terms: Vec<&str> = inputs.split(',').collect();
    let of = |letter: char| {
        terms
            .iter()
            .enumerate()
            .find_map(|(i, term)| node.shape(i)?.get(term.chars().position(|c| c == letter)?).cloned())
    };
    let plain = !equation.contains('.');
    plain.then(|| output.chars().map(|letter| of(letter).unwrap_or_default()).collect())
}

/// Attention of opset 23: the query's shape with the value's head size; caches grow by what is new.
fn attention(node: &Known<'_>) -> Option<Vec<ValueType>> {
    let query = node.shape(0)?;
    let last = match (query.len(), node.shape(2)?) {
        (4, [.., size]) => size.clone(),
        (3, [.., size]) => {
            let (heads, own) = (node.int("kv_num_heads", 0), node.int("q_num_heads", 0));
            let factor = usize::try_from(own.checked_div(heads)?).ok()?;
            size.map(|n| n.checked_mul(factor))
        }
        _ => return None,
    };
    let [outer @ .., _] = query else { return None };
    Some(vec![ValueType::new(node.data_type(0), [outer, &[last]].concat())])
}
