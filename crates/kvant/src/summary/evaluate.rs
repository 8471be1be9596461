//! Evaluations in words.

use super::{Remark, Section, eval_graph, evaluate_models};
use crate::evaluate::{ChoicesReport, EncoderReport, EvaluationReport, TextRun};
use crate::text::{Align, Table};
use kvant_forward::evaluation::{Comparison, ContextRange, Evaluation, Mean, Pooling};

impl EvaluationReport {
    /// The report in sections; where `by_position` is asked for, of language models on text also losses by the position in the window.
    pub fn sections(&self, by_position: bool) -> Vec<Section> {
        match self {
            EvaluationReport::Text(report) => {
                let mut sections = text(&report.found, &report.run);
                sections.extend(by_position.then(|| Section::Table(positions(&report.found.ranges))));
                sections
            }
            EvaluationReport::Encoder(report) => encoder(report),
            EvaluationReport::Graph(report) => eval_graph::sections(report),
            EvaluationReport::Time(time) => eval_graph::time_sections(time),
            EvaluationReport::Choices(report) => choices(report),
            EvaluationReport::Models(report) => evaluate_models::sections(report, by_position),
        }
    }

    /// Returns whether losses by position are known: of language models on text.
    pub fn has_positions(&self) -> bool {
        match self {
            EvaluationReport::Text(_) => true,
            EvaluationReport::Models(report) => report.models.iter().any(|model| model.report.has_positions()),
            _ => false,
        }
    }

    /// Remarks on the result.
    pub fn remarks(&self) -> Vec<Remark> {
        match self {
            EvaluationReport::Text(_) | EvaluationReport::Encoder(_) | EvaluationReport::Choices(_) => Vec::new(),
            EvaluationReport::Graph(report) => eval_graph::remarks(report),
            EvaluationReport::Time(time) => eval_graph::slowness(time).into_iter().collect(),
            EvaluationReport::Models(report) => report.models.iter().flat_map(|model| model.report.remarks()).collect(),
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
        perplexity_with_error(found),
        found.tokens.to_string(),
        found.windows.to_string(),
        found.window.to_string(),
        format!("{:.2}", found.seconds),
        format!("{:.0}", found.tokens_per_second()),
    ]);
    table
}

/// The perplexity with its standard error, where there are enough windows to know it.
pub(super) fn perplexity_with_error(found: &Evaluation) -> String {
    match found.perplexity_error {
        error if error.is_nan() => perplexity(found.perplexity),
        error => format!("{} ± {error:.4}", perplexity(found.perplexity)),
    }
}

/// A mean with its standard error, where that is known.
pub(super) fn with_error(mean: Mean) -> String {
    match mean {
        Mean { value, error } if error.is_nan() => format!("{value:.6}"),
        Mean { value, error } => format!("{value:.6} ± {error:.6}"),
    }
}

/// That of texts; of sounds without texts there is none.
pub(super) fn perplexity(value: f64) -> String {
    if value.is_nan() { "-".to_owned() } else { format!("{value:.4}") }
}

fn distance(comparison: &Comparison) -> Table {
    let titles = ["reference perplexity", "ratio", "KL mean", "KL 99 %", "same top token"];
    let mut table = Table::new(&titles.map(|title| (title, Align::Right)));
    table.push([
        perplexity(comparison.reference_perplexity),
        match comparison.perplexity_ratio {
            ratio if ratio.value.is_nan() => "-".to_owned(),
            ratio if ratio.error.is_nan() => format!("{:.5}", ratio.value),
            ratio => format!("{:.5} ± {:.5}", ratio.value, ratio.error),
        },
        with_error(comparison.kl_mean),
        format!("{:.6}", comparison.kl_p99),
        format!("{:.2} %", comparison.top1_agreement * 100.0),
    ]);
    table
}

/// Losses of tokens by their position in the window, in nats.
fn positions(ranges: &[ContextRange]) -> Table {
    let has_reference = ranges.iter().any(|range| range.comparison.is_some());
    let own = ["positions", "tokens", "loss"];
    let titles = own.into_iter().chain(["reference loss", "KL mean"].into_iter().filter(|_| has_reference));
    let mut table = Table::new(&titles.map(|title| (title, Align::Right)).collect::<Vec<_>>());
    for range in ranges {
        let beside = range.comparison.map(|both| [format!("{:.4}", both.reference_loss.value), with_error(both.kl)]);
        let loss = match range.loss {
            Mean { value, error } if error.is_nan() => format!("{value:.4}"),
            Mean { value, error } => format!("{value:.4} ± {error:.4}"),
        };
        let cells = [format!("{}-{}", range.from, range.to), range.tokens.to_string(), loss];
        table.push(cells.into_iter().chain(beside.into_iter().flatten()));
    }
    table
}

/// A share with its standard error.
pub(super) fn share(share: Mean) -> String {
    match share {
        Mean { value, error } if error.is_nan() => format!("{:.2} %", value * 100.0),
        Mean { value, error } => format!("{:.2} % ± {:.2}", value * 100.0, error * 100.0),
    }
}

fn choices(report: &ChoicesReport) -> Vec<Section> {
    let titles = ["accuracy", "by length", "questions", "seconds"];
    let mut table = Table::new(&titles.map(|title| (title, Align::Right)));
    table.push([
        share(report.accuracy),
        share(report.accuracy_norm),
        report.questions.to_string(),
        format!("{:.2}", report.seconds),
    ]);
    let mut sections = vec![Section::Table(table), Section::Text(format!("questions of {}", report.form.name()))];
    sections.extend(quantized_activations(&report.activations));
    if let Some(comparison) = &report.comparison {
        let titles = ["reference accuracy", "by length", "flips", "to right", "to wrong", "change of probability"];
        let mut table = Table::new(&titles.map(|title| (title, Align::Right)));
        table.push([
            share(comparison.accuracy),
            share(comparison.accuracy_norm),
            comparison.flips.to_string(),
            comparison.flips_to_right.to_string(),
            comparison.flips_to_wrong.to_string(),
            with_error(comparison.right_probability_change),
        ]);
        sections.push(Section::Table(table));
    }
    sections
}

pub(super) fn quantized_activations(activations: &[String]) -> Option<Section> {
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
