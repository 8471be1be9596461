//! Pairs tensors of a quantized graph with those of the float graph.

use std::collections::HashSet;

use kvant_container::onnx::{GraphProto, NodeProto};

use crate::fake_quantization::Quantizer;
use crate::graph::{Index, is, positional_input};

/// A tensor of the float graph and its counterpart in the quantized graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    /// In the float graph.
    pub reference: String,
    /// In the quantized graph: the value after its dequantization, where it is quantized.
    pub quantized: String,
    /// The operator that makes it in the float graph; empty for inputs.
    pub op: String,
}

/// The tensors both graphs have by name, in the order of the float graph.
pub(super) fn pairs(reference: &GraphProto, quantized: &GraphProto) -> Vec<Pair> {
    let index = Index::new(quantized);
    let inputs = reference.input.iter().map(|value| (value.name(), ""));
    let made = reference.node.iter().filter(|node| !is(node, "Constant") && !Quantizer::is(node));
    let made = made.flat_map(|node| node.output.iter().map(|name| (name.as_str(), node.op_type())));
    let mut seen = HashSet::new();
    let mut pairs = Vec::new();
    for (name, op) in inputs.chain(made).filter(|(name, _)| !name.is_empty()) {
        let there = index.producer(name).is_some() || !op.is_empty() && index.is_input(name);
        let stands = dequantized(quantized, &index, name).or_else(|| there.then(|| name.to_owned()));
        if let Some(stands) = stands.filter(|_| seen.insert(name)) {
            pairs.push(Pair { reference: name.to_owned(), quantized: stands, op: op.to_owned() });
        }
    }
    pairs
}

/// The outputs of both graphs: by name, or by position where not one name is the same and they are as many.
pub(super) fn outputs(reference: &GraphProto, quantized: &GraphProto) -> Vec<Pair> {
    let index = Index::new(reference);
    let op = |name: &str| index.producer(name).map_or(String::new(), |at| reference.node[at].op_type().to_owned());
    let pair = |a: &str, b: &str| Pair { reference: a.to_owned(), quantized: b.to_owned(), op: op(a) };
    let same = |name: &str| quantized.output.iter().any(|other| other.name() == name);
    let named: Vec<Pair> =
        reference.output.iter().filter(|v| same(v.name())).map(|v| pair(v.name(), v.name())).collect();
    if named.is_empty() && reference.output.len() == quantized.output.len() {
        return reference.output.iter().zip(&quantized.output).map(|(a, b)| pair(a.name(), b.name())).collect();
    }
    named
}

/// The value of a tensor after it was quantized and dequantized.
fn dequantized(graph: &GraphProto, index: &Index, name: &str) -> Option<String> {
    let quantizer = reader(graph, index, name, |q| !matches!(q, Quantizer::Dequantize { .. }))?;
    let output = quantizer.output.first()?;
    match Quantizer::of(quantizer).ok().flatten()? {
        Quantizer::Quantize { .. } => {
            let back = reader(graph, index, output, |q| matches!(q, Quantizer::Dequantize { .. }))?;
            back.output.first().cloned()
        }
        _ => Some(output.clone()),
    }
}

/// The first quantizing node of a kind that has the tensor as its first input.
fn reader<'g>(graph: &'g GraphProto, index: &Index, name: &str, kind: fn(Quantizer) -> bool) -> Option<&'g NodeProto> {
    let readers = index.consumers(name).iter().filter_map(|&at| graph.node.get(at));
    let mut first = readers.filter(|node| positional_input(node, 0) == Some(name));
    first.find(|node| Quantizer::of(node).ok().flatten().is_some_and(kind))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;

    fn graph(nodes: Vec<NodeProto>) -> GraphProto {
        GraphProto { node: nodes, ..GraphProto::default() }
    }

    #[test]
    fn tensors_are_compared_with_their_dequantized_values() {
        let float = graph(vec![
            node("Conv", "c", &["x"], &["a"]),
            node("Relu", "r", &["a"], &["b"]),
            node("Add", "d", &["b"], &["e"]),
        ]);
        let mut bfp = node("BFPQuantizeDequantize", "q", &["e"], &["e_dq"]);
        bfp.domain = Some("com.amd.quark".to_owned());
        let quantized = graph(vec![
            node("Conv", "c", &["x"], &["a"]),
            node("QuantizeLinear", "q", &["a", "s"], &["a_q"]),
            node("DequantizeLinear", "dq", &["a_q", "s"], &["a_dq"]),
            node("Add", "d", &["a_dq"], &["e"]),
            bfp,
        ]);
        let found: Vec<(String, String)> =
            pairs(&float, &quantized).into_iter().map(|p| (p.reference, p.quantized)).collect();
        let expected = [("a", "a_dq"), ("e", "e_dq")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(found, expected);
    }
}
