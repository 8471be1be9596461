//! Counts of nodes, tensors and bytes of a graph: one method for plans, runs and reports.

use kvant_quant::counts::number;
use std::collections::BTreeSet;
use std::fmt;

use kvant_container::onnx::{GraphProto, TensorProto, tensor_bytes};
use serde::Serialize;

use crate::graph::{bodies, for_each_node};

/// The quantized part of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Nodes of the simplified model, those inside of If, Loop and Scan included.
    pub nodes: usize,
    /// Those of them that are quantized, or that compute in 16 bits.
    pub quantized_nodes: usize,
    /// Tensors that are quantized: activations, weights and biases.
    pub quantized_tensors: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, quantized_nodes, quantized_tensors } = self;
        write!(f, "{quantized_nodes} of {} quantized", number(nodes, "node"))?;
        // Of a conversion to a 16-bit type no tensor has codes.
        if *quantized_tensors > 0 { write!(f, ", {}", number(quantized_tensors, "tensor")) } else { Ok(()) }
    }
}

/// Bytes of the constants of a graph, before and after.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ConstantBytes {
    /// Of the source.
    pub source_bytes: u64,
    /// Of the quantized model.
    pub output_bytes: u64,
}

/// Nodes of a graph, those inside of others included.
pub fn nodes(graph: &GraphProto) -> usize {
    let mut count = 0;
    for_each_node(graph, &mut |_| count += 1);
    count
}

/// Bytes of the constants of a graph, those of the bodies of its nodes included, each as given by `size`.
pub fn constants(graph: &GraphProto, size: impl Fn(&TensorProto) -> u64) -> u64 {
    let mut bytes = own_constants(graph, &size);
    for_each_node(graph, &mut |node| bytes += bodies(node).map(|body| own_constants(body, &size)).sum::<u64>());
    bytes
}

fn own_constants(graph: &GraphProto, size: &impl Fn(&TensorProto) -> u64) -> u64 {
    let mut seen = BTreeSet::new();
    graph.initializer.iter().filter(|tensor| seen.insert(tensor.name())).map(size).sum()
}

/// Bytes of a constant as it is.
pub fn size(tensor: &TensorProto) -> u64 {
    tensor_bytes(tensor).map_or(0, |bytes| bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{node, set_attribute};
    use crate::preset::Preset;
    use crate::quantize::prepare;
    use crate::test_models::{branches, floats, model, typed};
    use kvant_container::onnx::ModelProto;

    /// Two products around If, in whose branches there are two more each.
    fn around_branches() -> ModelProto {
        let square = |name: &str, scale: f32| floats(name, &[2, 2], &[scale, 0.5, -0.25, 1.0]);
        let branch = |name: &str, scale: f32| GraphProto {
            name: Some(name.to_owned()),
            node: vec![
                node("MatMul", &format!("{name}_own"), &["h", "w"], &["p"]),
                node("Add", &format!("{name}_bias"), &["p", "b"], &["q"]),
                node("MatMul", &format!("{name}_outer"), &["q", "outer"], &["r"]),
                node("Tanh", &format!("{name}_tanh"), &["r"], &["z"]),
            ],
            initializer: vec![square("w", scale), floats("b", &[2], &[0.5, -0.5])],
            output: vec![typed("z", &[4, 2])],
            ..GraphProto::default()
        };
        let mut sum = node("ReduceSum", "sum", &["h"], &["s"]);
        set_attribute(&mut sum, "keepdims", 0i64);
        let nodes = vec![
            node("MatMul", "first", &["x", "w0"], &["h0"]),
            node("Relu", "relu", &["h0"], &["h"]),
            sum,
            node("Greater", "greater", &["s", "zero"], &["c"]),
            branches("c", "i", branch("then", 0.25), branch("else", -2.0)),
            node("MatMul", "last", &["i", "outer"], &["o"]),
        ];
        let constants = vec![square("w0", 0.75), square("outer", 1.5), floats("zero", &[], &[0.0])];
        let mut made = model(17, nodes, constants, &[], &[]);
        let graph = made.graph.as_mut().unwrap();
        (graph.input, graph.output) = (vec![typed("x", &[4, 2])], vec![typed("o", &[4, 2])]);
        made
    }

    #[test]
    fn constants_of_bodies_are_counted() {
        // Two matrices and a number outside; a matrix and a vector in each branch.
        assert_eq!(constants(&around_branches().graph, size), 2 * 16 + 4 + 2 * (16 + 8));
    }

    #[test]
    fn nodes_inside_of_others_are_counted_once_among_all() {
        for (preset, quantized) in [("A8W8", 7), ("WEIGHTS_INT8", 7), ("INT8_DYNAMIC_QUANT", 6), ("MATMUL_NBITS", 6)] {
            let recipe = Preset::find(preset).unwrap().recipe();
            let counts = Counts::of(&prepare(around_branches(), recipe.clone(), &recipe.passes(), None).unwrap());
            assert_eq!((counts.quantized_nodes, counts.nodes), (quantized, 14), "{preset}");
            assert!(counts.to_string().starts_with(&format!("{quantized} of 14 nodes quantized")), "{counts}");
        }
    }
}
