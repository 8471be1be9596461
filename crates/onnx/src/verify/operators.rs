//! Operators that ONNX Runtime has only with a library of custom operators.

use crate::graph::{domain, function};
use kvant_container::onnx::ModelProto;
use kvant_quant::finding::Findings;
use std::collections::BTreeMap;

/// Domains whose operators come with ONNX Runtime.
const DOMAINS: [&str; 6] =
    ["", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft", "com.microsoft.nchwc"];

pub(super) fn run(model: &ModelProto, findings: &mut Findings) {
    let mut foreign: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for node in &model.graph.node {
        if !DOMAINS.contains(&domain(node)) && function(model, node).is_none() {
            *foreign.entry((domain(node), node.op_type())).or_default() += 1;
        }
    }
    for ((domain, operator), count) in foreign {
        let reason = format!("{count} nodes are of an operator that ONNX Runtime has in no library of its own");
        findings.warning(
            format!("{domain}:{operator}"),
            reason,
            "register the library that has it (of AMD Quark for com.amd.quark)",
        );
    }
}
