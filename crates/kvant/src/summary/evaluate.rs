//! Evaluations in words.

use super::{Remark, Section, eval_graph};
use crate::evaluate::{EncoderReport, EvaluationReport, TextRun};
use crate::text::{Align, Table};
use kvant_forward::evaluation::{Comparison, Evaluation, Pooling};

impl EvaluationReport {
    /// The report in sections.
    pub fn sections(&self) -> Vec<Section> {
        match self {
            EvaluationReport::Text(report) => text(&report.found, &report.run),
            EvaluationReport::Encoder(report) => encoder(report),
            EvaluationReport::Graph(report) => eval_graph::sections(report),
        }
    }

    /// Remarks on the result.
    pub fn remarks(&self) -> Vec<Remark> {
        match self {
            EvaluationReport::Text(_) | EvaluationReport::Encoder(_) => Vec::new(),
            EvaluationReport::Graph(report) => eval_graph::remarks(report),
        }
    }
}

fn text(found: &Evaluation, run: &TextRun) -> Vec<Section> {
    let mut sections = vec![Section::Table(summary(found))];
    if let TextRun::Forward { activations } = run {
        sections.extend(quantized_activations(activations));
    }
    if let Some(comparison) = &found.comparison {
        sections.push(Section::Table(distance(comparison)));
        // Graphs have no blocks.
        sections.extend((!comparison.blocks.is_empty()).then(|| Section::Table(blocks(&comparison.blocks))));
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
        perplexity(found.perplexity),
        found.tokens.to_string(),
        found.windows.to_string(),
        found.window.to_string(),
        format!("{:.2}", found.seconds),
        format!("{:.0}", found.tokens_per_second()),
    ]);
    table
}

/// That of texts; of sounds without texts there is none.
fn perplexity(value: f64) -> String {
    if value.is_nan() { "-".to_owned() } else { format!("{value:.4}") }
}

fn distance(comparison: &Comparison) -> Table {
    let titles = ["reference perplexity", "ratio", "KL mean", "KL 99 %", "same top token"];
    let mut table = Table::new(&titles.map(|title| (title, Align::Right)));
    table.push([
        perplexity(comparison.reference_perplexity),
        match comparison.perplexity_ratio {
            ratio if ratio.value.is_nan() => "-".to_owned(),
            ratio => format!("{:.5} ± {:.5}", ratio.value, ratio.error),
        },
        match comparison.kl_mean {
            mean if mean.error.is_nan() => format!("{:.6}", mean.value),
            mean => format!("{:.6} ± {:.6}", mean.value, mean.error),
        },
        format!("{:.6}", comparison.kl_p99),
        format!("{:.2} %", comparison.top1_agreement * 100.0),
    ]);
    table
}

fn quantized_activations(activations: &[String]) -> Option<Section> {
    let lines: Vec<String> = activations.iter().map(|line| format!("quantized activations: {line}")).collect();
    (!lines.is_empty()).then(|| Section::Text(lines.join("\n")))
}

fn encoder(report: &EncoderReport) -> Vec<Section> {
    let EncoderReport { found, activations, media } = report;
    let samples = media.map_or("texts", |media| media.name);
    let of = match samples {
        "images" => "an image",
        "sounds" => "a sound",
        _ => "a text",
    };
    let titles = ["embedding cosine", "least", "hidden SQNR dB", samples, "tokens", "seq len", "seconds", "tokens/s"];
    let mut summary = Table::new(&titles.map(|title| (title, Align::Right)));
    summary.push([
        format!("{:.6}", found.mean_cosine),
        format!("{:.6}", found.least_cosine),
        format!("{:.2}", found.hidden_decibels),
        found.sequences.to_string(),
        found.tokens.to_string(),
        found.window.to_string(),
        format!("{:.2}", found.seconds),
        format!("{:.0}", found.tokens_per_second()),
    ]);
    let mut readouts =
        Table::new(&[("output", Align::Left), ("SQNR dB", Align::Right), ("same largest", Align::Right)]);
    for readout in &found.readouts {
        let share = format!("{:.2} %", readout.agreement * 100.0);
        readouts.push([readout.name.to_owned(), format!("{:.2}", readout.decibels), share]);
    }
    let pooling = match found.pooling {
        Pooling::Mean => format!("the embedding of {of} is the mean of its last hidden states"),
        Pooling::First => format!("the embedding of {of} is the last hidden state of its first token"),
    };
    let mut sections = vec![Section::Table(summary), Section::Text(pooling)];
    sections.extend(quantized_activations(activations));
    sections.extend((!found.readouts.is_empty()).then_some(Section::Table(readouts)));
    sections.push(Section::Table(blocks(&found.blocks)));
    sections
}

fn blocks(decibels: &[f64]) -> Table {
    let mut table = Table::new(&["block", "SQNR dB"].map(|title| (title, Align::Right)));
    for (block, decibels) in decibels.iter().enumerate() {
        table.push([block.to_string(), format!("{decibels:.2}")]);
    }
    table
}
