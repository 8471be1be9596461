//! The weights of queries and keys, whose outputs meet in attention scores. Not those of values.

use std::collections::{BTreeSet, HashSet};

use kvant_container::onnx::{GraphProto, NodeProto};

use crate::graph::{Index, is};

/// Operators that are a whole attention, and read queries and keys first.
const ATTENTIONS: &[&str] = &["Attention", "GroupQueryAttention", "MultiHeadAttention"];

/// The operators allowed between products of scores.
const ENDS: &[&str] = &["MatMul", "Gemm", "Conv", "ConvTranspose", "Softmax"];

/// The constants that are multiplied to make queries and keys: behind both inputs of a product of two computed tensors that a
/// Softmax reads, and behind the first two of an operator that is an attention.
pub(super) fn scored(graph: &GraphProto) -> BTreeSet<String> {
    let finder = Finder { graph, index: Index::new(graph) };
    let mut found = BTreeSet::new();
    for node in &graph.node {
        if is(node, "Softmax") {
            let scores = finder.ends(node.input.iter().take(1));
            let scores = scores.into_iter().filter(|end| is(end, "MatMul") && finder.weight(end).is_none());
            scores.for_each(|scores| found.extend(finder.weights(scores.input.iter())));
        } else if ATTENTIONS.contains(&node.op_type()) {
            found.extend(finder.weights(node.input.iter().take(2)));
        }
    }
    found
}

struct Finder<'g> {
    graph: &'g GraphProto,
    index: Index,
}

impl<'g> Finder<'g> {
    /// The constant that a product multiplies by.
    fn weight(&self, node: &NodeProto) -> Option<String> {
        let product = is(node, "MatMul") || is(node, "Gemm");
        let name = node.input.get(1).filter(|_| product)?;
        self.index.constant(self.graph, name).map(|tensor| tensor.name().to_owned())
    }

    /// The constants of the nearest products behind tensors.
    fn weights<'a>(&self, tensors: impl Iterator<Item = &'a String>) -> Vec<String> {
        self.ends(tensors).into_iter().filter_map(|end| self.weight(end)).collect()
    }

    /// The nearest products and the like behind tensors.
    fn ends<'a>(&self, tensors: impl Iterator<Item = &'a String>) -> Vec<&'g NodeProto> {
        let mut open: Vec<usize> = tensors.filter_map(|name| self.index.producer(name)).collect();
        let (mut seen, mut ends) = (HashSet::new(), Vec::new());
        while let Some(position) = open.pop() {
            let node = &self.graph.node[position];
            match ENDS.contains(&node.op_type()) {
                _ if !seen.insert(position) => {}
                true => ends.push(node),
                false => open.extend(node.input.iter().filter_map(|name| self.index.producer(name))),
            }
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use kvant_container::onnx::{DataType, tensor};

    use super::*;
    use crate::graph::node;

    #[test]
    fn queries_and_keys_are_found_but_not_values() {
        let weight = |name: &str| tensor(name, DataType::FLOAT, &[1, 1], vec![0u8; 4]);
        let graph = GraphProto {
            node: vec![
                node("MatMul", "", &["x", "w_q"], &["q0"]),
                node("Gemm", "", &["x", "w_k"], &["k0"]),
                node("MatMul", "", &["x", "w_v"], &["v"]),
                node("LayerNormalization", "", &["q0", "gain"], &["q"]),
                node("Transpose", "", &["k0"], &["k"]),
                node("MatMul", "", &["q", "k"], &["scores"]),
                node("Add", "", &["scores", "mask"], &["masked"]),
                node("Softmax", "", &["masked"], &["shares"]),
                node("MatMul", "", &["shares", "v"], &["mixed"]),
                node("MatMul", "", &["mixed", "w_o"], &["y"]),
                // Classes are not scores.
                node("MatMul", "", &["y", "w_c"], &["classes"]),
                node("Softmax", "", &["classes"], &["z"]),
                node("MatMul", "", &["y", "w_q2"], &["q2"]),
                node("MatMul", "", &["y", "w_k2"], &["k2"]),
                node("MatMul", "", &["y", "w_v2"], &["v2"]),
                node("MultiHeadAttention", "", &["q2", "k2", "v2"], &["out"]),
            ],
            initializer: ["w_q", "w_k", "w_v", "w_o", "w_c", "w_q2", "w_k2", "w_v2", "gain"].map(weight).to_vec(),
            ..GraphProto::default()
        };
        assert_eq!(scored(&graph), ["w_k", "w_k2", "w_q", "w_q2"].map(str::to_owned).into());
    }
}
