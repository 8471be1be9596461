//! Evaluations of several models in words: a row for each.

use super::Section;
use super::evaluate::{perplexity, perplexity_with_error, share, with_error};
use crate::evaluate::{EvaluationReport, ModelSize, ModelsReport};
use crate::text::{Align, Table, counts, short_names, size};
use kvant_forward::evaluation::ContextRange;
use std::path::Path;

/// The table of the models, and on request that of losses by position.
pub fn sections(report: &ModelsReport, by_position: bool) -> Vec<Section> {
    let sizes = || report.reference.iter().chain(report.models.iter().map(|model| &model.size));
    let names = short_names(&sizes().map(|size| size.path.as_path()).collect::<Vec<&Path>>());
    let of_models = &names[report.reference.iter().count()..];
    let has_reference = report.reference.is_some();
    let first = report.models.first().map(|model| &model.report);
    let titles = first.map(|report| titles(report, has_reference)).unwrap_or_default();
    let all = [("model", Align::Left), ("size", Align::Right), ("bpw", Align::Right)];
    let mut table =
        Table::new(&all.into_iter().chain(titles.iter().map(|title| (*title, Align::Right))).collect::<Vec<_>>());
    if let Some(reference) = &report.reference {
        let cells = first.map(reference_cells).unwrap_or_default();
        table.push(row(&names[0], reference, cells, titles.len()));
    }
    for (name, model) in of_models.iter().zip(&report.models) {
        table.push(row(name, &model.size, cells(&model.report), titles.len()));
    }
    let mut sections = vec![Section::Table(table)];
    sections.extend(first.map(|one| Section::Text(format!("{}, in {:.1} s", data(one), report.seconds))));
    if by_position {
        sections.extend(positions(report, of_models).map(Section::Table));
    }
    sections
}

fn titles(report: &EvaluationReport, has_reference: bool) -> Vec<&'static str> {
    let (own, beside): (&[&str], &[&str]) = match report {
        EvaluationReport::Text(_) => (&["perplexity"], &["KL mean", "same top"]),
        EvaluationReport::Encoder(_) => (&["embedding cosine", "least", "hidden SQNR dB"], &[]),
        EvaluationReport::Graph(_) => (&["least SQNR dB", "top-1", "same top class"], &[]),
        EvaluationReport::Choices(_) => (&["accuracy", "by length"], &["flips", "change of p"]),
        EvaluationReport::Time(_) | EvaluationReport::Models(_) => (&[], &[]),
    };
    own.iter().chain(beside.iter().filter(|_| has_reference)).copied().collect()
}

/// A model with its cells, as many as there are titles.
fn row(name: &str, model: &ModelSize, cells: Vec<String>, count: usize) -> Vec<String> {
    let bits = model.bits_per_weight.map_or_else(|| "-".to_owned(), |bits| format!("{bits:.2}"));
    let cells = cells.into_iter().chain(std::iter::repeat("-".to_owned())).take(count);
    [name.to_owned(), size::bytes(model.bytes), bits].into_iter().chain(cells).collect()
}

fn cells(report: &EvaluationReport) -> Vec<String> {
    let percent = |value: f64| format!("{:.2} %", value * 100.0);
    match report {
        EvaluationReport::Text(report) => {
            let beside = report.found.comparison.as_ref();
            let beside = beside.map(|both| [with_error(both.kl_mean), percent(both.top1_agreement)]);
            [perplexity_with_error(&report.found)].into_iter().chain(beside.into_iter().flatten()).collect()
        }
        EvaluationReport::Encoder(report) => vec![
            format!("{:.6}", report.found.mean_cosine),
            format!("{:.6}", report.found.least_cosine),
            format!("{:.2}", report.found.hidden_decibels),
        ],
        EvaluationReport::Graph(report) => {
            let least = report.outputs.iter().map(|output| output.sqnr_db).fold(f64::INFINITY, f64::min);
            let share = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), percent);
            vec![format!("{least:.2}"), share(report.top1), share(report.top1_agreement)]
        }
        EvaluationReport::Choices(report) => {
            let beside = report.comparison.as_ref();
            let beside = beside.map(|both| [both.flips.to_string(), with_error(both.right_probability_change)]);
            let own = [share(report.accuracy), share(report.accuracy_norm)];
            own.into_iter().chain(beside.into_iter().flatten()).collect()
        }
        EvaluationReport::Time(_) | EvaluationReport::Models(_) => Vec::new(),
    }
}

/// The cells of the reference, as far as they are known: the first that compares says what it is.
fn reference_cells(report: &EvaluationReport) -> Vec<String> {
    let mut cells: Vec<String> = match report {
        EvaluationReport::Text(report) => {
            report.found.comparison.iter().map(|both| perplexity(both.reference_perplexity)).collect()
        }
        EvaluationReport::Choices(report) => {
            let both = report.comparison.iter();
            both.flat_map(|both| [share(both.accuracy), share(both.accuracy_norm)]).collect()
        }
        EvaluationReport::Graph(report) => {
            let top1 = report.reference_top1.map_or_else(|| "-".to_owned(), |share| format!("{:.2} %", share * 100.0));
            return vec!["reference".to_owned(), top1];
        }
        EvaluationReport::Encoder(_) | EvaluationReport::Time(_) | EvaluationReport::Models(_) => Vec::new(),
    };
    cells.push("reference".to_owned());
    cells
}

/// What the models were measured on.
fn data(report: &EvaluationReport) -> String {
    match report {
        EvaluationReport::Text(report) => format!(
            "{} in {} of {}",
            counts::number(report.found.tokens, "token"),
            counts::number(report.found.windows, "window"),
            report.found.window
        ),
        EvaluationReport::Encoder(report) => counts::number(report.found.sequences, "sample"),
        EvaluationReport::Graph(report) => counts::number(report.samples, "sample"),
        EvaluationReport::Choices(report) => {
            format!("{} of {}", counts::number(report.questions, "question"), report.form.name())
        }
        EvaluationReport::Time(time) => counts::number(time.runs, "inference"),
        EvaluationReport::Models(report) => counts::number(report.models.len(), "model"),
    }
}

/// The mean KL of each model by position, or without a reference its mean loss.
fn positions(report: &ModelsReport, names: &[String]) -> Option<Table> {
    let ranges = |report: &EvaluationReport| match report {
        EvaluationReport::Text(report) => report.found.ranges.clone(),
        _ => Vec::new(),
    };
    let all: Vec<Vec<ContextRange>> = report.models.iter().map(|model| ranges(&model.report)).collect();
    let first = all.first().filter(|ranges| !ranges.is_empty())?;
    let measure = if report.reference.is_some() { "KL of" } else { "loss of" };
    let titles = names.iter().map(|name| (format!("{measure} {name}"), Align::Right));
    let own = [("positions".to_owned(), Align::Right), ("tokens".to_owned(), Align::Right)];
    let mut table = Table::new(&own.into_iter().chain(titles).collect::<Vec<_>>());
    for range in first {
        let of_model = |ranges: &Vec<ContextRange>| {
            let same = ranges.iter().find(|other| other.from == range.from);
            same.map_or_else(
                || "-".to_owned(),
                |same| match same.comparison {
                    Some(comparison) => with_error(comparison.kl),
                    None => format!("{:.4}", same.loss.value),
                },
            )
        };
        let own = [format!("{}-{}", range.from, range.to), range.tokens.to_string()];
        table.push(own.into_iter().chain(all.iter().map(of_model)));
    }
    Some(table)
}
