//! Operators rewritten so that a float engine computes what the NPU computes: averages by a multiplication and a shift, the
//! sigmoid by three pieces, slopes in 256ths.

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, tensor};

use super::refine::is_dpu_sigmoid;
use crate::graph::{Index, float_attribute, ints_attribute, is, node, set_attribute};
use crate::placement::Placement;
use crate::shape::Types;

/// The NPU's approximation of 1/6 in its sigmoid, 2731 / 2^14, relative to 1/6.
const SIGMOID_FACTOR: f64 = 2731.0 / 16384.0 * 6.0;

/// Computes as the hardware does, where its operators differ: [`npu::simulate`].
pub(crate) fn simulate_hardware(model: &mut ModelProto, types: &Types, placement: &Placement) {
    let dims = |name: &str| types.get(name).and_then(|t| t.known_shape());
    let quantized =
        |node: &NodeProto| node.output.iter().chain(&node.input).any(|name| placement.activations.contains_key(name));
    if let Some(graph) = model.graph.as_mut() {
        simulate(graph, &dims, &quantized);
    }
}

/// Rewrites a graph. `dims` tells the dimensions of a tensor where all of them are known, `quantized` whether a node is.
/// Returns the number of nodes changed.
pub fn simulate(
    graph: &mut GraphProto,
    dims: &dyn Fn(&str) -> Option<Vec<usize>>,
    quantized: &dyn Fn(&NodeProto) -> bool,
) -> usize {
    let mut nodes = Vec::with_capacity(graph.node.len());
    let mut changed = 0;
    let index = Index::new(graph);
    for mut node in std::mem::take(&mut graph.node) {
        if !quantized(&node) {
            nodes.push(node);
            continue;
        }
        changed += usize::from(rewrite(&mut node));
        let axes = axes(&node, graph, &index);
        match factor(&node, &axes, dims).filter(|&factor| factor != 1.0) {
            Some(factor) => {
                changed += 1;
                let (first, second) = scaled(node, factor as f32, graph);
                nodes.extend([first, second]);
            }
            None => nodes.push(node),
        }
    }
    graph.node = nodes;
    changed
}

/// Changes that keep one node.
fn rewrite(node: &mut NodeProto) -> bool {
    if is(node, "LeakyRelu") {
        let alpha = float_attribute(node, "alpha").unwrap_or(0.01);
        set_attribute(node, "alpha", (256.0 * alpha).round_ties_even() / 256.0);
        return true;
    }
    if is(node, "Sigmoid") {
        node.op_type = Some("HardSigmoid".to_owned());
        set_attribute(node, "alpha", 1.0f32 / 6.0);
        return true;
    }
    false
}

/// The axes of a ReduceMean: an attribute, or a constant input from opset 18 on.
fn axes(node: &NodeProto, graph: &GraphProto, index: &Index) -> Vec<i64> {
    let from_input = node.input.get(1).and_then(|name| index.integers(graph, name));
    from_input.or_else(|| ints_attribute(node, "axes").map(<[i64]>::to_vec)).unwrap_or_default()
}

/// The factor by which the NPU's result is larger.
fn factor(node: &NodeProto, axes: &[i64], dims: &dyn Fn(&str) -> Option<Vec<usize>>) -> Option<f64> {
    let square = |sides: &[usize]| match sides {
        [height, width] if height == width && *height > 0 => Some(average_factor(*height)),
        _ => None,
    };
    match node.op_type() {
        "HardSigmoid" if is_dpu_sigmoid(node) => Some(SIGMOID_FACTOR),
        "GlobalAveragePool" => dims(node.input.first()?).filter(|d| d.len() == 4).and_then(|d| square(&d[2..])),
        "AveragePool" => {
            let kernel: Vec<usize> = ints_attribute(node, "kernel_shape")?.iter().map(|&k| k.max(0) as usize).collect();
            square(&kernel)
        }
        "ReduceMean" => {
            let dims = dims(node.input.first()?)?;
            let side = |axis: &i64| dims.get(usize::try_from(axis.rem_euclid(dims.len().max(1) as i64)).ok()?).copied();
            let number: usize = axes.iter().map(side).collect::<Option<Vec<_>>>()?.iter().product();
            (!axes.is_empty() && number > 0).then(|| reciprocal_factor(number))
        }
        _ => None,
    }
}

/// The factor of an average over a square window.
fn average_factor(side: usize) -> f64 {
    match side {
        3 => 9.0 * 7.0 / 64.0,
        5 => 25.0 * 10.0 / 256.0,
        6 => 36.0 * 7.0 / 256.0,
        7 => 49.0 * 21.0 / 1024.0,
        14 => 196.0 * 21.0 / 4096.0,
        256.. => 1.0,
        _ => reciprocal_factor(side * side),
    }
}

/// `number * k / 2^n`, `k / 2^n` the nearest to `1 / number` with `n < 7 + ceil(log2(number))`; of equals the smallest n.
fn reciprocal_factor(number: usize) -> f64 {
    let exact = 1.0 / number as f64;
    let limit = 7 + (number as f64).log2().ceil() as i32;
    let candidate = |n: i32| (2f64.powi(n) * exact).round_ties_even() / 2f64.powi(n);
    let nearer = |best: f64, next: f64| if (next - exact).abs() < (best - exact).abs() { next } else { best };
    (0..limit).map(candidate).reduce(nearer).unwrap_or(exact) * number as f64
}

/// The node, its output renamed, and a multiplication that makes the output.
fn scaled(mut first: NodeProto, factor: f32, graph: &mut GraphProto) -> (NodeProto, NodeProto) {
    let output = first.output[0].clone();
    let (inner, scale) = (format!("{output}_Mul"), format!("{output}_Scale"));
    graph.initializer.push(tensor(&scale, DataType::FLOAT, &[], factor.to_le_bytes().to_vec()));
    first.output[0].clone_from(&inner);
    let second = node("Mul", &format!("{output}_Mul_node"), &[&inner, &scale], &[&output]);
    (first, second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn average_pool_factors_match_the_hardware() {
        assert_eq!(average_factor(7), 49.0 * 21.0 / 1024.0);
        assert_eq!(average_factor(8), 1.0);
        assert!((average_factor(9) - 1.0).abs() < 0.01);
        assert_eq!(average_factor(300), 1.0);
    }

    #[test]
    fn sigmoid_becomes_hard_sigmoid_and_a_factor() {
        let mut graph = GraphProto { node: vec![node("Sigmoid", "s", &["x"], &["y"])], ..GraphProto::default() };
        assert_eq!(simulate(&mut graph, &|_| None, &|_| true), 2);
        let ops: Vec<&str> = graph.node.iter().map(|n| n.op_type()).collect();
        assert_eq!(ops, ["HardSigmoid", "Mul"]);
        assert_eq!((&graph.node[1].output[0], &graph.node[0].output[0]), (&"y".to_owned(), &"y_Mul".to_owned()));
    }
}
