//! Names of nodes: ONNX Runtime refuses a graph in which two nodes have one. Those of tensors are checked with the structure.

use std::collections::BTreeMap;

use crate::graph::{bodies, for_each_node};
use kvant_container::onnx::{GraphProto, ModelProto, NodeProto};
use kvant_quant::counts::number;
use kvant_quant::finding::Findings;

pub(super) fn run(model: &ModelProto, findings: &mut Findings) {
    check(&model.graph, findings);
    for_each_node(&model.graph, &mut |node| bodies(node).for_each(|body| check(body, findings)));
}

fn check(graph: &GraphProto, findings: &mut Findings) {
    let mut named: BTreeMap<&str, Vec<&NodeProto>> = BTreeMap::new();
    for node in graph.node.iter().filter(|node| !node.name().is_empty()) {
        named.entry(node.name()).or_default().push(node);
    }
    for (name, nodes) in named {
        if let [first, second, ..] = &nodes[..] {
            let (first, second) = (first.op_type().escape_debug(), second.op_type().escape_debug());
            let reason = format!("is the name of {}: {first} and {second}", number(nodes.len(), "node"));
            findings.error(
                name,
                reason,
                "rename one of them: nodes need no names, and only those of tensors connect them",
            );
        }
    }
}
