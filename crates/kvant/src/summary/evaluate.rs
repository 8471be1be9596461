//! Evaluations in words.

use super::{Remark, Section, eval_graph};
use crate::evaluate::{EvaluationReport, TextRun};
use crate::text::{Align, Table};
use kvant_forward::evaluation::{Comparison, Evaluation};

impl EvaluationReport {
    /// The report in sections.
    pub fn sections(&self) -> Vec<Section> {
        match self {
            EvaluationReport::Text(report) => text(&report.found, &report.run),
            EvaluationReport::Graph(report) => eval_graph::sections(report),
        }
    }

    /// Remarks on the result.
    pub fn remarks(&self) -> Vec<Remark> {
        match self {
            EvaluationReport::Text(_) => Vec::new(),
            EvaluationReport::Graph(report) => eval_graph::remarks(report),
        }
    }
}

fn text(found: &Evaluation, run: &TextRun) -> Vec<Section> {
    let mut sections = vec![Section::Table(summary(found))];
    let lines: Vec<String> = match run {
        TextRun::Forward { activations } => {
            activations.iter().map(|line| format!("quantized activations: {line}")).collect()
        }
        TextRun::Engine(_) => Vec::new(),
    };
    if !lines.is_empty() {
        sections.push(Section::Text(lines.join("\n")));
    }
    if let Some(comparison) = &found.comparison {
        sections.push(Section::Table(distance(comparison)));
        // Graphs have no blocks.
        sections.extend((!comparison.blocks.is_empty()).then(|| Section::Table(blocks(comparison))));
    }
    if let TextRun::Engine(name) = run {
        sections.push(Section::Text(format!("on {name}")));
    }
    sections
}

fn summary(found: &Evaluation) -> Table {
    let titles = ["perplexity", "tokens", "windows", "seq len", "seconds", "tokens/s"];
    let mut table = Table::new(&titles.map(|title| (title, Align::Right)));
    table.push([
        format!("{:.4}", found.perplexity),
        found.tokens.to_string(),
        found.windows.to_string(),
        found.window.to_string(),
        format!("{:.2}", found.seconds),
        format!("{:.0}", found.tokens_per_second()),
    ]);
    table
}

fn distance(comparison: &Comparison) -> Table {
    let titles = ["reference perplexity", "ratio", "KL mean", "KL 99 %", "same top token"];
    let mut table = Table::new(&titles.map(|title| (title, Align::Right)));
    table.push([
        format!("{:.4}", comparison.reference_perplexity),
        format!("{:.5} ± {:.5}", comparison.perplexity_ratio.value, comparison.perplexity_ratio.error),
        format!("{:.6} ± {:.6}", comparison.kl_mean.value, comparison.kl_mean.error),
        format!("{:.6}", comparison.kl_p99),
        format!("{:.2} %", comparison.top1_agreement * 100.0),
    ]);
    table
}

fn blocks(comparison: &Comparison) -> Table {
    let mut table = Table::new(&["block", "SQNR dB"].map(|title| (title, Align::Right)));
    for (block, decibels) in comparison.blocks.iter().enumerate() {
        table.push([block.to_string(), format!("{decibels:.2}")]);
    }
    table
}
