//! Operators and attributes that ONNX Runtime does not know, or has only with a library of custom operators.

use super::types::name_of;
use crate::graph::{STANDARD_DOMAIN, domain, for_each_node, function, is_standard, opset};
use crate::known_operators::{Known, is_of_microsoft, standard};
use kvant_container::onnx::{ModelProto, NodeProto};
use kvant_quant::finding::Findings;
use std::collections::{BTreeMap, HashSet};

/// Domains whose operators come with ONNX Runtime.
const DOMAINS: [&str; 6] =
    ["", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft", "com.microsoft.nchwc"];

const HINT: &str = "export the model again";

pub(super) fn run(model: &ModelProto, findings: &mut Findings) {
    let mut foreign: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let opset = opset(model, STANDARD_DOMAIN);
    for_each_node(&model.graph, &mut |node| {
        repeated(node, findings);
        match opset {
            _ if function(model, node).is_some() => {}
            Some(opset) if is_standard(node) => of_standard(node, opset, findings),
            _ if is_foreign(node) => *foreign.entry((domain(node), node.op_type())).or_default() += 1,
            _ => {}
        }
    });
    for ((domain, operator), count) in foreign {
        let reason = format!("none of ONNX Runtime's own libraries provides this operator; nodes that use it: {count}");
        findings.warning(
            format!("{domain}:{operator}"),
            reason,
            "register the library that has it (of AMD Quark for com.amd.quark)",
        );
    }
}

fn is_foreign(node: &NodeProto) -> bool {
    let is_microsoft = domain(node) == "com.microsoft";
    !DOMAINS.contains(&domain(node)) || is_microsoft && !is_of_microsoft(node.op_type())
}

/// An operator of the standard domain: there in the opset, and with no attribute that is none of its own.
fn of_standard(node: &NodeProto, opset: i64, findings: &mut Findings) {
    let (name, operator) = (name_of(node), shown(node.op_type()));
    match standard(node.op_type(), opset) {
        Known::No => findings.error(name, format!("`{operator}` is not an ONNX operator"), HINT),
        Known::Since(first) => {
            let reason = format!("`{operator}` needs opset {first}; the model has {opset}");
            findings.error(name, reason, "raise the opset");
        }
        Known::With(attributes) => {
            // Runtimes name attributes of their own with two underscores.
            let own = |name: &str| attributes.contains(&name) || name.starts_with("__");
            if let Some(foreign) = node.attribute.iter().find(|attribute| !own(attribute.name())) {
                let reason = format!("`{operator}` has no attribute `{}` in opset {opset}", shown(foreign.name()));
                findings.error(name, reason, HINT);
            }
        }
    }
}

/// Attributes that are there twice.
fn repeated(node: &NodeProto, findings: &mut Findings) {
    let mut seen = HashSet::new();
    if let Some(twice) = node.attribute.iter().find(|attribute| !seen.insert(attribute.name())) {
        findings.error(name_of(node), format!("has the attribute `{}` twice", shown(twice.name())), HINT);
    }
}

/// A name from a file, safe to print.
fn shown(name: &str) -> String {
    name.chars().take(60).flat_map(char::escape_debug).collect()
}
