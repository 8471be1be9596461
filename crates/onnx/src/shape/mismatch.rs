//! Nodes whose inputs have shapes that do not go together, whatever the data: no runtime computes them.

use super::Dim;
use super::node::Known;
use super::rules::broadcasts;

/// Two dimensions that would have to be equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mismatch {
    /// The first input and its dimension.
    first: (String, usize),
    /// The other one.
    second: (String, usize),
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [(first, a), (second, b)] = [&self.first, &self.second];
        write!(f, "a dimension of `{first}` ({a}) does not match that of `{second}` ({b})")
    }
}

/// The first two dimensions of a node's inputs that contradict each other. Opsets before 7 broadcast otherwise and are not looked at.
pub(super) fn mismatch(node: &Known<'_>) -> Option<Mismatch> {
    match (crate::graph::domain(node.node), node.node.op_type()) {
        ("", "MatMul" | "MatMulInteger") => product(node, 1),
        ("", "QLinearMatMul") => product(node, 3),
        ("", "Gemm") => {
            let axis = |attribute: &str, plain: i64| if node.int(attribute, 0) != 0 { 1 - plain } else { plain };
            let inner = unequal(node, (0, node.dim(0, axis("transA", 1))), (1, node.dim(1, axis("transB", 0))));
            inner.or_else(|| unequal(node, (1, node.dim(1, axis("transB", 1))), (2, wide(node.dim(2, -1)))))
        }
        ("", "Conv") => channels(node, 1).or_else(|| unequal(node, (1, node.dim(1, 0)), (2, node.dim(2, 0)))),
        ("", "ConvInteger") => channels(node, 1),
        ("", "BatchNormalization") => {
            (1..5).find_map(|input| unequal(node, (0, node.dim(0, 1)), (input, node.dim(input, 0))))
        }
        ("", "PRelu") => broadcast(node),
        ("", "QLinearConv") => channels(node, 3),
        ("", "ConvTranspose") => unequal(node, (0, node.dim(0, 1)), (1, node.dim(1, 0))),
        ("", _) if node.opset >= 7 && broadcasts(node.node) => broadcast(node),
        _ => None,
    }
}

/// Columns of the left input beside rows of the right one.
fn product(node: &Known<'_>, right: usize) -> Option<Mismatch> {
    let rows = if node.rank(right)? == 1 { -1 } else { -2 };
    unequal(node, (0, node.dim(0, -1)), (right, node.dim(right, rows)))
}

/// Channels of the data beside those of the weight in all groups.
fn channels(node: &Known<'_>, weight: usize) -> Option<Mismatch> {
    let groups = usize::try_from(node.int("group", 1)).ok()?;
    let in_groups = node.dim(weight, 1).map(|dim| dim.map(|n| n.checked_mul(groups)));
    unequal(node, (0, node.dim(0, 1)), (weight, in_groups))
}

/// A dimension that is not broadcast.
fn wide(dim: Option<Dim>) -> Option<Dim> {
    dim.filter(|dim| *dim != Dim::Known(1))
}

/// Dimensions that are known and differ.
fn unequal(node: &Known<'_>, (first, a): (usize, Option<Dim>), (second, b): (usize, Option<Dim>)) -> Option<Mismatch> {
    let (a, b) = (a?.known()?, b?.known()?);
    let named = |position: usize, dim: usize| Some((node.node.input.get(position)?.clone(), dim));
    (a != b).then(|| Some(Mismatch { first: named(first, a)?, second: named(second, b)? })).flatten()
}

/// Dimensions of inputs at one place, counted from the end, of which neither is 1.
fn broadcast(node: &Known<'_>) -> Option<Mismatch> {
    let inputs = 0..node.node.input.len();
    let longest = inputs.clone().filter_map(|i| node.rank(i)).max()?;
    (1..=longest as i64).find_map(|place| {
        let sized = inputs.clone().filter_map(|i| Some((i, node.dim(i, -place)?.known().filter(|n| *n != 1)?)));
        let sized: Vec<(usize, usize)> = sized.collect();
        let (first, dim) = *sized.first()?;
        let (other, differing) = *sized.iter().find(|(_, n)| *n != dim)?;
        unequal(node, (first, Some(Dim::Known(dim))), (other, Some(Dim::Known(differing))))
    })
}

#[cfg(test)]
mod tests {
    use crate::graph::{node, set_attribute};
    use crate::shape::contradiction;
    use crate::test_models::{floats, model};
    use kvant_container::onnx::{NodeProto, TensorProto};

    fn found(nodes: Vec<NodeProto>, weights: Vec<TensorProto>) -> Option<String> {
        let graph = model(13, nodes, weights, &[], &["y"]);
        contradiction(&graph).map(|(node, mismatch)| format!("{node}: {mismatch}"))
    }

    #[test]
    fn products_whose_inner_dimensions_differ_are_found() {
        let product = || vec![node("MatMul", "m", &["a", "b"], &["y"])];
        let weights =
            |rows: usize| vec![floats("a", &[2, 31], &[0.; 62]), floats("b", &[rows, 2], &vec![0.; rows * 2])];
        let text = found(product(), weights(32)).unwrap();
        assert_eq!(text, "m: a dimension of `a` (31) does not match that of `b` (32)");
        assert_eq!(found(product(), weights(31)), None);
        let mut gemm = node("Gemm", "g", &["a", "b"], &["y"]);
        set_attribute(&mut gemm, "transB", 1i64);
        let square = |rows: usize, columns: usize| floats("b", &[rows, columns], &vec![0.; rows * columns]);
        assert_eq!(found(vec![gemm.clone()], vec![floats("a", &[2, 3], &[0.; 6]), square(5, 3)]), None);
        assert!(found(vec![gemm], vec![floats("a", &[2, 3], &[0.; 6]), square(3, 5)]).is_some());
    }

    #[test]
    fn channels_that_groups_do_not_make_are_found() {
        let convolution = |group: i64| {
            let mut conv = node("Conv", "c", &["a", "b"], &["y"]);
            set_attribute(&mut conv, "group", group);
            found(vec![conv], vec![floats("a", &[1, 4, 3, 3], &[0.; 36]), floats("b", &[4, 2, 1, 1], &[0.; 8])])
        };
        assert_eq!(convolution(2), None);
        assert!(convolution(1).is_some_and(|text| text.contains("`a` (4)") && text.contains("(2)")));
    }

    #[test]
    fn vectors_of_another_length_are_found() {
        let with = |operator: &str, weight: &[usize], vector: usize| {
            let nodes = vec![node(operator, "n", &["a", "b", "c"], &["y"])];
            let sized = |name: &str, shape: &[usize]| floats(name, shape, &vec![0.; shape.iter().product()]);
            let first: &[usize] = if operator == "Gemm" { &[2, 3] } else { &[1, 3, 4, 4] };
            found(nodes, vec![sized("a", first), sized("b", weight), sized("c", &[vector])])
        };
        assert!(with("Conv", &[8, 3, 1, 1], 7).is_some() && with("Conv", &[8, 3, 1, 1], 8).is_none());
        assert!(with("Gemm", &[3, 8], 7).is_some());
        assert!(with("Gemm", &[3, 8], 8).is_none() && with("Gemm", &[3, 8], 1).is_none());
        assert!(with("BatchNormalization", &[4], 3).is_some() && with("BatchNormalization", &[3], 3).is_none());
        assert!(with("PRelu", &[7, 1, 1], 7).is_some() && with("PRelu", &[3, 1, 1], 1).is_none());
    }

    #[test]
    fn shapes_that_do_not_broadcast_are_found() {
        let sum = |shape: &[usize]| {
            let b = floats("b", shape, &vec![0.; shape.iter().product()]);
            found(vec![node("Add", "s", &["a", "b"], &["y"])], vec![floats("a", &[4, 1, 3], &[0.; 12]), b])
        };
        assert_eq!(sum(&[5, 3]), None);
        assert_eq!(sum(&[1]), None);
        assert!(sum(&[5, 2]).is_some());
    }

    /// Exporters leave shapes of intermediate tensors behind that a change of the inputs made wrong; runtimes compute such models.
    #[test]
    fn declared_shapes_of_intermediate_tensors_do_not_count() {
        let nodes = vec![node("Relu", "r", &["a"], &["h"]), node("MatMul", "m", &["h", "b"], &["y"])];
        let weights = vec![floats("a", &[2, 3], &[0.; 6]), floats("b", &[3, 2], &[0.; 6])];
        let mut graph = model(13, nodes, weights, &[], &["y"]);
        let stale = floats("h", &[7, 7], &[0.; 49]);
        let declared = crate::shape::ValueType::of_tensor(&stale).to_proto("h").unwrap();
        graph.graph.as_mut().unwrap().value_info.push(declared);
        assert_eq!(contradiction(&graph), None);
    }
}
