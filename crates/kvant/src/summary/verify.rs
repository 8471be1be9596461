//! Verifications in words.

use super::{Section, findings};
use crate::onnx::opening::Opening;
use crate::onnx::verify::GraphVerdict;
use crate::text::{Align, Table, counts};
use crate::verify::{CheckpointVerdict, PipelineVerdict, VerificationReport, in_words};
use kvant_formats::verify::{LoaderSupport, Loads, Report};
use kvant_onnx::fusions::{Fusions, UnfusedPair};
use std::collections::BTreeMap;

impl VerificationReport {
    /// The report in sections; `all` lists each finding instead of one for those that differ only in numbers.
    pub fn sections(&self, all: bool) -> Vec<Section> {
        match self {
            VerificationReport::Checkpoint(found) => checkpoint(found, all),
            VerificationReport::Graph(found) => graph(found, all),
            VerificationReport::Pipeline(found) => pipeline(found, all),
        }
    }
}

fn checkpoint(found: &CheckpointVerdict, all: bool) -> Vec<Section> {
    let report = &found.report;
    let mut sections = vec![Section::Text(head(report))];
    if !report.findings.is_empty() {
        sections.push(Section::Table(findings::table(&report.findings, all)));
    }
    sections.push(Section::Table(table_of_loaders(report, found.loader())));
    sections
}

fn head(report: &Report) -> String {
    let family = report.family.map_or("no family that is known".to_owned(), |family| format!("family {family}"));
    let layers = match report.quantized_layers {
        0 => "not quantized".to_owned(),
        layers => format!("{} quantized ({})", counts::number(layers, "layer"), report.method),
    };
    let tensors = format!("{}, {family}, {layers}", counts::number(report.tensors, "tensor"));
    format!("{tensors}: {}", findings::count(&report.findings))
}

/// Of each component a line, its findings, and the loaders that take it.
fn pipeline(found: &PipelineVerdict, all: bool) -> Vec<Section> {
    let mut sections: Vec<Section> = found.flaws.iter().cloned().map(Section::Text).collect();
    for (name, verdict) in &found.components {
        let report = &verdict.report;
        let taken = report.verdicts.iter().filter(|verdict| verdict.loads == Loads::Yes);
        let taken: Vec<&str> = taken.map(|verdict| verdict.loader).collect();
        let loaders = if taken.is_empty() { String::new() } else { format!("; loads in {}", taken.join(", ")) };
        sections.push(Section::Text(format!("{name}: {}{loaders}", head(report))));
        if !report.findings.is_empty() {
            sections.push(Section::Table(findings::table(&report.findings, all)));
        }
    }
    sections
}

/// Every loader, or the requested one.
fn table_of_loaders(report: &Report, asked: Option<&str>) -> Table {
    let titles = ["loader", "version", "loads", "devices", "why"].map(|title| (title, Align::Left));
    let mut table = Table::new(&titles);
    for verdict in report.verdicts.iter().filter(|verdict| asked.is_none_or(|id| verdict.id == id)) {
        let loads = match verdict.loads {
            Loads::Yes => "yes",
            Loads::No => "no",
            Loads::Unknown => "not known",
        };
        let devices: Vec<String> = verdict.tensor_parallel.iter().map(usize::to_string).collect();
        table.push([verdict.loader, verdict.version, loads, &devices.join(", "), &why(verdict)]);
    }
    table
}

/// The reason or the conditions.
fn why(verdict: &LoaderSupport) -> String {
    let more = verdict.reasons.len().saturating_sub(1);
    let first = verdict.reasons.first().map(in_words);
    let newer = verdict.newer.first().map(|reason| format!("; {}", reason.reason)).unwrap_or_default();
    match (first, verdict.needs) {
        (Some(first), _) if more == 1 => format!("{first} (and another reason)"),
        (Some(first), _) if more > 1 => format!("{first} (and {more} more reasons)"),
        (Some(first), _) => first,
        (None, Some(needs)) => format!("with {needs}{newer}"),
        (None, None) => verdict.slow.first().map(|reason| format!("slow: {}", in_words(reason))).unwrap_or_default(),
    }
}

fn graph(found: &GraphVerdict, all: bool) -> Vec<Section> {
    let opening = match (&found.opening, found.runs) {
        (Opening::Opens(engine), true) => format!("{engine} opens it"),
        (Opening::Opens(engine), false) => format!("{engine} opens it and does not run it"),
        (Opening::Refuses { engine, .. }, _) => format!("{engine} does not open it"),
        (Opening::Unknown, true) => "ONNX Runtime runs it, as far as is known of its rules".to_owned(),
        (Opening::Unknown, false) => "ONNX Runtime does not run it".to_owned(),
    };
    let head = format!("{}: {}; {opening}", counts::number(found.nodes, "node"), findings::count(&found.findings));
    let mut sections = vec![Section::Text(head)];
    if !found.findings.is_empty() {
        sections.push(Section::Table(findings::table(&found.findings, all)));
    }
    sections.extend(found.fusions.iter().flat_map(|fusions| fusion_sections(fusions, all)));
    sections
}

/// The nodes that quantize and dequantize still: each, or one row for each operator and reason.
fn fusion_sections(fusions: &Fusions, all: bool) -> Vec<Section> {
    let problems: Vec<&UnfusedPair> = fusions.problems().collect();
    let ends = fusions.unfused.len() - problems.len();
    let head = format!(
        "onnxruntime on x86: {} with codes; {} outside of kernels, and {ends} where the graph begins and ends",
        counts::number(fusions.fused, "operator"),
        counts::number(problems.len(), "QuantizeLinear or DequantizeLinear node")
    );
    let mut sections = vec![Section::Text(head)];
    let beside = |pair: &UnfusedPair| pair.beside.as_ref().map_or("", |float| float.operator.as_str()).to_owned();
    if all {
        let mut table =
            Table::new(&["node", "tensor", "beside", "operator", "reason"].map(|title| (title, Align::Left)));
        for pair in &problems {
            let name = pair.beside.as_ref().map_or("", |float| float.name.as_str());
            table.push([&pair.node, &pair.tensor, name, &beside(pair), &pair.problem.to_string()]);
        }
        sections.extend((!problems.is_empty()).then_some(Section::Table(table)));
        return sections;
    }
    let mut groups: BTreeMap<(String, &str), Vec<&UnfusedPair>> = BTreeMap::new();
    problems.iter().for_each(|pair| groups.entry((beside(pair), pair.problem.name())).or_default().push(pair));
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, pairs)| std::cmp::Reverse(pairs.len()));
    let titles = [("nodes", Align::Right), ("beside", Align::Left), ("reason", Align::Left), ("first", Align::Left)];
    let mut table = Table::new(&titles);
    for ((operator, _), pairs) in &groups {
        let reason = pairs[0].problem.to_string();
        table.push([&pairs.len().to_string(), operator, &reason, &pairs[0].node]);
    }
    sections.extend((!groups.is_empty()).then_some(Section::Table(table)));
    sections
}
