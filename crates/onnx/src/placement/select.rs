//! Which nodes of a graph a recipe means.

use std::collections::HashSet;

use kvant_container::onnx::{GraphProto, NodeProto};

use super::rules::{Rule, row};
use crate::graph::{Index, called, is_standard};
use crate::recipe::{RuleSet, Selection, Subgraph};

/// The rule of a node, or none where it is not quantized.
pub fn rule(node: &NodeProto, rules: RuleSet, selection: &Selection) -> Option<Rule> {
    if !is_standard(node) || !is_selected(node, selection) {
        return None;
    }
    let op_type = node.op_type();
    let row = row(op_type);
    let ruled = match rules {
        RuleSet::Standard => row.and_then(|row| row.standard),
        RuleSet::Extended => row.and_then(|row| row.extended),
        RuleSet::Products => Some(Rule::Product).filter(|_| matches!(op_type, "MatMul" | "Gemm")),
    };
    let named = |list: &[String]| list.iter().any(|name| name == op_type);
    // An operator that is asked for by name is quantized by the best rule there is.
    let asked = selection.all_op_types || named(&selection.more_op_types) || named(&selection.op_types);
    let forced = || asked.then(|| row.and_then(|row| row.extended).unwrap_or(Rule::All));
    ruled.or_else(forced).filter(|_| may_be_forced(op_type))
}

/// Operators that compute no values from floats: what they read and make must stay as it is.
fn may_be_forced(op_type: &str) -> bool {
    const NEVER: &[&str] = &[
        "Cast",
        "CastLike",
        "Constant",
        "ConstantOfShape",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "If",
        "Loop",
        "NonMaxSuppression",
        "NonZero",
        "OneHot",
        "QuantizeLinear",
        "Range",
        "Scan",
        "Shape",
        "Size",
        "TopK",
    ];
    !NEVER.contains(&op_type)
}

/// Returns whether a recipe's choice of nodes has a node in it.
pub fn is_selected(node: &NodeProto, selection: &Selection) -> bool {
    let op_type = node.op_type();
    let only = selection.op_types.is_empty()
        || selection.op_types.iter().chain(&selection.more_op_types).any(|name| name == op_type);
    let named = selection.nodes.is_empty() || selection.nodes.iter().any(|glob| glob.matches(called(node)));
    only && named && !is_excluded(node, selection)
}

/// Returns whether a node, and what is inside of it, is left alone.
pub fn is_excluded(node: &NodeProto, selection: &Selection) -> bool {
    selection.excluded_op_types.iter().any(|name| name == node.op_type())
        || selection
            .node_rules
            .iter()
            .rev()
            .find(|rule| rule.nodes.matches(called(node)))
            .is_some_and(|rule| rule.excluded)
}

/// Positions of the nodes on paths between the ends of subgraphs, the ends included.
pub fn in_subgraphs(graph: &GraphProto, index: &Index, subgraphs: &[Subgraph]) -> HashSet<usize> {
    subgraphs.iter().flat_map(|subgraph| between(graph, index, subgraph)).collect()
}

fn between(graph: &GraphProto, index: &Index, subgraph: &Subgraph) -> HashSet<usize> {
    let named = |names: &[String]| -> Vec<usize> {
        let matches = |node: &NodeProto| names.iter().any(|name| name == called(node));
        graph.node.iter().enumerate().filter(|(_, node)| matches(node)).map(|(i, _)| i).collect()
    };
    let after = reach(named(&subgraph.from), |i| {
        graph.node[i].output.iter().flat_map(|name| index.consumers(name)).copied().collect()
    });
    let before =
        reach(named(&subgraph.to), |i| graph.node[i].input.iter().filter_map(|name| index.producer(name)).collect());
    after.intersection(&before).copied().collect()
}

fn reach(start: Vec<usize>, next: impl Fn(usize) -> Vec<usize>) -> HashSet<usize> {
    let mut found: HashSet<usize> = start.iter().copied().collect();
    let mut open = start;
    while let Some(node) = open.pop() {
        open.extend(next(node).into_iter().filter(|&n| found.insert(n)));
    }
    found
}
