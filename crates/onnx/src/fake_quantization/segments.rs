//! Cutting a graph at its quantizing nodes: stretches of other nodes between them, each of which an engine runs as a whole.
//!
//! A stage is the quantizing nodes whose inputs are there, then the stretch of nodes that can run with their results.

use std::collections::{HashMap, HashSet};

use kvant_container::onnx::{GraphProto, NodeProto};

use super::quantizer::Quantizer;
use crate::graph::for_each_read;

/// Quantizing nodes, then a stretch of others.
#[derive(Debug, Default)]
pub(super) struct QuantizationStage {
    /// Quantizing nodes, each after those it reads from.
    pub quantizers: Vec<NodeProto>,
    /// The part that an engine runs; empty if there is nothing to run.
    pub segment: Segment,
    /// Tensors that no later stage reads.
    pub last: Vec<String>,
}

/// A stretch of nodes without quantizing ones.
#[derive(Debug, Default)]
pub(super) struct Segment {
    /// The nodes, sorted.
    pub nodes: Vec<NodeProto>,
    /// Tensors that come from outside and are no constants.
    pub reads: Vec<String>,
    /// Constants.
    pub constants: Vec<String>,
    /// Tensors that are read outside or wanted.
    pub gives: Vec<String>,
}

/// The stage after which a tensor exists.
#[derive(Clone, Copy)]
enum There {
    /// Before the stage's stretch is run.
    Before(usize),
    /// Made by the stage's stretch.
    Within(usize),
}

impl There {
    fn for_node(self) -> usize {
        match self {
            Self::Before(stage) | Self::Within(stage) => stage,
        }
    }

    fn for_quantizer(self) -> usize {
        match self {
            Self::Before(stage) => stage,
            Self::Within(stage) => stage + 1,
        }
    }
}

/// The stages of a sorted graph in which `constant` tells names of constants, for the wanted tensors alone.
pub(super) fn stages(graph: &GraphProto, wanted: &[String], constant: &dyn Fn(&str) -> bool) -> Vec<QuantizationStage> {
    let needed = needed(graph, wanted);
    let mut there: HashMap<&str, There> = HashMap::new();
    let mut stages: Vec<QuantizationStage> = Vec::new();
    let mut at: Vec<(usize, bool)> = Vec::with_capacity(graph.node.len());
    for (node, _) in graph.node.iter().zip(&needed).filter(|(_, needed)| **needed) {
        let quantizer = Quantizer::is(node);
        let mut stage = 0;
        for_each_read(node, &mut |name| {
            let place = there.get(name).copied().unwrap_or(There::Before(0));
            stage = stage.max(if quantizer { place.for_quantizer() } else { place.for_node() });
        });
        let place = if quantizer { There::Before(stage) } else { There::Within(stage) };
        there.extend(node.output.iter().map(|name| (name.as_str(), place)));
        at.push((stage, quantizer));
    }
    let count = at.iter().map(|(stage, _)| stage + 1).max().unwrap_or(0);
    stages.resize_with(count, QuantizationStage::default);
    let nodes = graph.node.iter().zip(&needed).filter(|(_, needed)| **needed).map(|(node, _)| node);
    for (node, (stage, quantizer)) in nodes.zip(at) {
        match quantizer {
            true => stages[stage].quantizers.push(node.clone()),
            false => stages[stage].segment.nodes.push(node.clone()),
        }
    }
    connect(&mut stages, wanted, constant);
    stages
}

/// Which nodes the wanted tensors depend on.
fn needed(graph: &GraphProto, wanted: &[String]) -> Vec<bool> {
    let mut names: HashSet<String> = wanted.iter().cloned().collect();
    let mut needed = vec![false; graph.node.len()];
    for (node, needed) in graph.node.iter().zip(&mut needed).rev() {
        *needed = node.output.iter().any(|name| names.contains(name));
        if *needed {
            for_each_read(node, &mut |name| {
                names.insert(name.to_owned());
            });
        }
    }
    needed
}

/// Works out what goes in and out of each stretch, and when a tensor is read for the last time.
fn connect(stages: &mut [QuantizationStage], wanted: &[String], constant: &dyn Fn(&str) -> bool) {
    let mut last: HashMap<String, usize> = HashMap::new();
    // Read by a quantizing node, or by a stretch that does not make it.
    let mut outside: HashSet<String> = wanted.iter().cloned().collect();
    for (number, stage) in stages.iter_mut().enumerate() {
        let segment = &mut stage.segment;
        let made: HashSet<&str> = segment.nodes.iter().flat_map(|n| &n.output).map(String::as_str).collect();
        let mut seen = HashSet::new();
        for node in &segment.nodes {
            for_each_read(node, &mut |name| {
                if made.contains(name) || !seen.insert(name.to_owned()) {
                    return;
                }
                let kind = if constant(name) { &mut segment.constants } else { &mut segment.reads };
                kind.push(name.to_owned());
            });
        }
        let quantized = stage.quantizers.iter().flat_map(|n| &n.input).filter(|name| !name.is_empty());
        for name in quantized.chain(&segment.reads) {
            last.insert(name.clone(), number);
            outside.insert(name.clone());
        }
    }
    for stage in stages.iter_mut() {
        let made = stage.segment.nodes.iter().flat_map(|n| &n.output);
        stage.segment.gives = made.filter(|name| outside.contains(*name)).cloned().collect();
    }
    for (name, stage) in last {
        stages[stage].last.push(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;

    /// x -> conv a -> q/dq b -> relu c -> q/dq d -> add(d, b) -> y; an unused node beside it.
    fn graph() -> GraphProto {
        let nodes = vec![
            node("Conv", "1", &["x", "w"], &["a"]),
            node("Sqrt", "unused", &["x"], &["u"]),
            node("QuantizeLinear", "2", &["a", "s"], &["aq"]),
            node("DequantizeLinear", "3", &["aq", "s"], &["b"]),
            node("Relu", "4", &["b"], &["c"]),
            node("QuantizeLinear", "5", &["c", "s"], &["cq"]),
            node("DequantizeLinear", "6", &["cq", "s"], &["d"]),
            node("Add", "7", &["d", "b"], &["y"]),
        ];
        GraphProto { node: nodes, ..GraphProto::default() }
    }

    #[test]
    fn segments_lie_between_quantizing_nodes() {
        let wanted = ["y".to_owned(), "c".to_owned()];
        let stages = stages(&graph(), &wanted, &|name| name == "w" || name == "s");
        let shape: Vec<(usize, usize)> = stages.iter().map(|s| (s.quantizers.len(), s.segment.nodes.len())).collect();
        assert_eq!(shape, [(0, 1), (2, 1), (2, 1)]);
        assert_eq!(
            (&stages[0].segment.reads[..], &stages[0].segment.constants[..]),
            (&["x".to_owned()][..], &["w".to_owned()][..])
        );
        assert_eq!(stages[1].segment.gives, ["c"]);
        assert_eq!(stages[2].segment.reads, ["d", "b"]);
        assert!(stages[2].last.contains(&"b".to_owned()) && stages[0].last == ["x"]);
    }
}
