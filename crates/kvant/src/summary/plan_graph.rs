//! Plans for ONNX graphs in words.

use super::Section;
use crate::onnx::plan::GraphPlan;
use crate::text::{Align, Table, counts, size};
use kvant_onnx::cost::Cost;
use kvant_onnx::count::{ConstantBytes, Counts};
use kvant_onnx::placement::Skipped;
use std::collections::BTreeMap;

/// The plan of a graph.
pub fn sections(plan: &GraphPlan) -> Vec<Section> {
    let prepared = &plan.prepared;
    let mut table = Table::new(&["role", "tensor", "type", "scale"].map(|title| (title, Align::Left)));
    plan.rows().into_iter().for_each(|row| table.push(row));
    let passes: Vec<String> = prepared.passes.iter().filter(|(_, n)| *n > 0).map(|(p, n)| format!("{p} {n}")).collect();
    let passes = if passes.is_empty() { "none".to_owned() } else { passes.join(", ") };
    let left = left_in_float(&prepared.placement.skipped);
    let about = if prepared.is_estimate() { "about " } else { "" };
    let needs = if plan.lacks_data { "\nneeds: samples of data, add ‹data› FILE" } else { "" };
    let ranges = plan.ranges().map_or_else(String::new, |ranges| format!("\n{ranges}"));
    let text = format!(
        "{about}{}, {} to observe on data{ranges}\nrewrites: {passes}{left}\n{}{needs}",
        Counts::of(prepared),
        prepared.observation().tensors().len(),
        totals(&plan.cost, plan.samples, prepared.is_estimate())
    );
    vec![Section::Table(table), Section::Text(text)]
}

/// Sizes, and what calibration takes, estimated.
fn totals(cost: &Cost, samples: usize, is_estimate: bool) -> String {
    let ConstantBytes { source_bytes: before, output_bytes: after } = cost.constants;
    let about = if is_estimate { "about " } else { "" };
    let (from, to) = (size::bytes(before), size::bytes(after));
    let size = format!("constants: {from} to {about}{to}, {}", size::ratio(before, after));
    if cost.observed == 0 {
        return size;
    }
    let work = cost.multiplications.map(|n| 2.0 * n as f64 * samples as f64);
    let work = work.map_or_else(|| "unknown, shapes are open".to_owned(), |n| format!("about {}", size::operations(n)));
    let memory = cost.memory.map_or_else(|| "unknown".to_owned(), |bytes| format!("about {}", size::bytes(bytes)));
    format!(
        "{size}\ncalibration on {}, if there are as many: arithmetic {work}, memory {memory}",
        counts::number(samples, "sample")
    )
}

/// The number of nodes that stay in float although a recipe selects them, by reason.
fn left_in_float(skipped: &[Skipped]) -> String {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    skipped.iter().for_each(|skipped| reasons.entry(skipped.reason).or_default().push(&skipped.node));
    let line = |(reason, nodes): (&str, Vec<&str>)| {
        let first = nodes.first().copied().unwrap_or_default();
        format!("\n{} left in float, `{first}` for one: {reason}", counts::number(nodes.len(), "node"))
    };
    reasons.into_iter().map(line).collect()
}
