//! Nodes whose inputs have shapes that do not go together, whatever the data: no runtime computes them.

use super::Dim;
use super::node::Known;
use super::rules::broadcasts;

/// What contradicts what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// Dimensions of two inputs, with their names, that would have to be equal.
    Dimensions { first: (String, usize), second: (String, usize) },
    /// Dimensions of two inputs that would have to be as many.
    Ranks { first: (String, usize), second: (String, usize) },
    /// Output channels of a weight that groups do not divide.
    Groups { weight: String, channels: usize, groups: usize },
    /// Elements of an input that do not fill a shape.
    Elements { input: String, elements: usize, shape: Vec<i64> },
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mismatch::Dimensions { first: (first, a), second: (second, b) } => {
                write!(f, "a dimension of `{first}` ({a}) does not match that of `{second}` ({b})")
            }
            Mismatch::Ranks { first: (first, a), second: (second, b) } => {
                write!(f, "`{first}` has {a} dimensions, and `{second}` has {b}")
            }
            Mismatch::Groups { weight, channels, groups } => {
                write!(f, "{groups} groups do not divide the {channels} output channels of `{weight}`")
            }
            Mismatch::Elements { input, elements, shape } => {
                write!(f, "`{input}` has {elements} elements, which do not fill the shape {shape:?}")
            }
        }
    }
}

/// The first contradiction among the inputs of a node. Opsets before 7 broadcast otherwise and are not looked at.
pub(super) fn mismatch(node: &Known<'_>) -> Option<Mismatch> {
    match (crate::graph::domain(node.node), node.node.op_type()) {
        ("", "MatMul" | "MatMulInteger") => product(node, 1),
        ("", "QLinearMatMul") => product(node, 3),
        ("", "Gemm") => {
            let axis = |attribute: &str, plain: i64| if node.int(attribute, 0) != 0 { 1 - plain } else { plain };
            let inner = unequal(node, (0, node.dim(0, axis("transA", 1))), (1, node.dim(1, axis("transB", 0))));
            inner.or_else(|| unequal(node, (1, node.dim(1, axis("transB", 1))), (2, wide(node.dim(2, -1)))))
        }
        ("", "Conv") => channels(node, 1)
            .or_else(|| unequal(node, (1, node.dim(1, 0)), (2, node.dim(2, 0))))
            .or_else(|| undivided(node, 1)),
        ("", "ConvInteger") => channels(node, 1).or_else(|| undivided(node, 1)),
        ("", "BatchNormalization") => {
            (1..5).find_map(|input| unequal(node, (0, node.dim(0, 1)), (input, node.dim(input, 0))))
        }
        ("", "PRelu") => broadcast(node),
        ("", "LayerNormalization") => (1..3).find_map(|vector| at_the_end(node, vector)),
        ("", "Concat") => joined(node),
        ("", "Reshape") => refilled(node),
        ("", "QLinearConv") => channels(node, 3).or_else(|| undivided(node, 3)),
        ("", "ConvTranspose") => unequal(node, (0, node.dim(0, 1)), (1, node.dim(1, 0))),
        ("", _) if node.opset >= 7 && broadcasts(node.node) => broadcast(node),
        _ => None,
    }
}

/// Columns of the left input beside rows of the right one.
fn product(node: &Known<'_>, right: usize) -> Option<Mismatch> {
    let ranks = (node.rank(0)?, node.rank(right)?);
    let rows = if ranks.1 == 1 { -1 } else { -2 };
    let outer = 3..=ranks.0.min(ranks.1) as i64;
    unequal(node, (0, node.dim(0, -1)), (right, node.dim(right, rows))).or_else(|| {
        outer
            .map(|place| [0, right].map(|input| (input, wide(node.dim(input, -place)))))
            .find_map(|[a, b]| unequal(node, a, b))
    })
}

/// Output channels that belong to no group.
fn undivided(node: &Known<'_>, weight: usize) -> Option<Mismatch> {
    let groups = usize::try_from(node.int("group", 1)).ok().filter(|groups| *groups > 0)?;
    let channels = node.dim(weight, 0)?.known().filter(|channels| !channels.is_multiple_of(groups))?;
    Some(Mismatch::Groups { weight: node.node.input.get(weight)?.clone(), channels, groups })
}

/// The last dimensions of the data beside those of a vector that is broadcast to them.
fn at_the_end(node: &Known<'_>, vector: usize) -> Option<Mismatch> {
    let places = 1..=node.rank(vector)?.min(node.rank(0)?) as i64;
    places
        .map(|place| (node.dim(0, -place), wide(node.dim(vector, -place))))
        .find_map(|(a, b)| unequal(node, (0, a), (vector, b)))
}

/// Dimensions of what is joined along another axis.
fn joined(node: &Known<'_>) -> Option<Mismatch> {
    let rank = node.rank(0)?;
    let along = super::node::axis(node.int("axis", 1), rank)?;
    (1..node.node.input.len()).find_map(|other| match node.rank(other)? {
        same if same == rank => (0..rank)
            .filter(|axis| *axis != along)
            .find_map(|axis| unequal(node, (0, node.dim(0, axis as i64)), (other, node.dim(other, axis as i64)))),
        fewer => Some(Mismatch::Ranks { first: named(node, 0, rank)?, second: named(node, other, fewer)? }),
    })
}

/// Elements of the data beside the shape that they are to take.
fn refilled(node: &Known<'_>) -> Option<Mismatch> {
    let product = |sizes: &[usize]| sizes.iter().try_fold(1usize, |all, size| all.checked_mul(*size));
    let shape = node.shape(0)?.iter().map(Dim::known).collect::<Option<Vec<usize>>>()?;
    let elements = product(&shape)?;
    let wanted = node.integers(1)?;
    let copies = node.int("allowzero", 0) == 0;
    let size_at = |(axis, size): (usize, &i64)| match size {
        0 if copies => shape.get(axis).copied(),
        size => usize::try_from(*size).ok(),
    };
    let unfilled =
        || Some(Mismatch::Elements { input: node.node.input.first()?.clone(), elements, shape: wanted.clone() });
    if copies && wanted.iter().skip(shape.len()).any(|size| *size == 0) {
        return unfilled();
    }
    let stated = wanted.iter().enumerate().filter(|(_, size)| **size != -1);
    let stated = product(&stated.map(size_at).collect::<Option<Vec<usize>>>()?)?;
    let fills = match wanted.contains(&-1) {
        true => stated == 0 || elements.is_multiple_of(stated),
        false => elements == stated,
    };
    if fills { None } else { unfilled() }
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

/// The name of an input, with a number of it.
fn named(node: &Known<'_>, position: usize, number: usize) -> Option<(String, usize)> {
    Some((node.node.input.get(position)?.clone(), number))
}

/// Dimensions that are known and differ.
fn unequal(node: &Known<'_>, (first, a): (usize, Option<Dim>), (second, b): (usize, Option<Dim>)) -> Option<Mismatch> {
    let (a, b) = (a?.known()?, b?.known()?);
    (a != b)
        .then(|| Some(Mismatch::Dimensions { first: named(node, first, a)?, second: named(node, second, b)? }))
        .flatten()
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
    use crate::test_models::{floats, integers, model};
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

    fn sized(name: &str, shape: &[usize]) -> TensorProto {
        floats(name, shape, &vec![0.; shape.iter().product()])
    }

    #[test]
    fn outer_dimensions_of_products_are_broadcast() {
        let product = |a: &[usize], b: &[usize]| {
            found(vec![node("MatMul", "m", &["a", "b"], &["y"])], vec![sized("a", a), sized("b", b)])
        };
        assert!(product(&[2, 3, 4], &[5, 4, 6]).is_some_and(|text| text.contains("`a` (2)")));
        assert_eq!(product(&[2, 3, 4], &[2, 4, 6]), None);
        assert_eq!(product(&[1, 3, 4], &[5, 4, 6]), None);
        assert_eq!(product(&[5, 3, 4], &[4, 6]), None);
    }

    #[test]
    fn groups_that_do_not_divide_output_channels_are_found() {
        let convolution = |outputs: usize| {
            let mut conv = node("Conv", "c", &["a", "b"], &["y"]);
            set_attribute(&mut conv, "group", 2i64);
            found(vec![conv], vec![sized("a", &[1, 4, 3, 3]), sized("b", &[outputs, 2, 1, 1])])
        };
        assert_eq!(convolution(6), None);
        assert!(convolution(5).is_some_and(|text| text.contains("2 groups do not divide the 5 output channels")));
    }

    #[test]
    fn weights_of_norms_and_parts_of_a_whole_are_compared() {
        let with = |operator: &str, a: &[usize], b: &[usize]| {
            let mut made = node(operator, "n", &["a", "b"], &["y"]);
            set_attribute(&mut made, "axis", -1i64);
            found(vec![made], vec![sized("a", a), sized("b", b)])
        };
        assert_eq!(with("LayerNormalization", &[2, 3, 8], &[8]), None);
        assert!(with("LayerNormalization", &[2, 3, 8], &[7]).is_some());
        assert_eq!(with("Concat", &[2, 3, 8], &[2, 3, 5]), None);
        assert!(with("Concat", &[2, 3, 8], &[2, 4, 8]).is_some());
        assert!(with("Concat", &[2, 3, 8], &[6, 8]).is_some_and(|text| text.contains("has 3 dimensions")));
    }

    #[test]
    fn elements_that_do_not_fill_a_shape_are_found() {
        let reshape = |shape: &[i64]| {
            let target = integers("b", shape);
            found(vec![node("Reshape", "r", &["a", "b"], &["y"])], vec![sized("a", &[2, 3, 4]), target])
        };
        for fits in [&[24][..], &[0, 12], &[-1, 8], &[0, -1]] {
            assert_eq!(reshape(fits), None, "{fits:?}");
        }
        assert!(reshape(&[6, 0, 0]).is_some());
        assert!(reshape(&[2, 12, 1, 0]).is_some(), "no dimension to copy");
        assert!(
            reshape(&[-1, 7]).is_some_and(|text| text.contains("24 elements, which do not fill the shape [-1, 7]"))
        );
        assert!(reshape(&[25]).is_some());
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

    #[test]
    fn attention_over_packed_queries_keys_and_values_is_as_wide_as_the_queries() {
        let graph = |name: &str| {
            let mut attention = node("GroupQueryAttention", "a", &[name, "", "", "past", "past"], &["h"]);
            attention.domain = Some("com.microsoft".to_owned());
            set_attribute(&mut attention, "num_heads", 4i64);
            set_attribute(&mut attention, "kv_num_heads", 2i64);
            found(
                vec![attention, node("MatMul", "m", &["h", "b"], &["y"])],
                vec![sized(name, &[1, 3, 128]), sized("b", &[64, 8])],
            )
        };
        assert_eq!(graph("packed"), None);
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
