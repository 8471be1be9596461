//! `kvant eval`: how well a model predicts a text, or how far a graph is from its float graph.

use super::eval_graph;
use crate::args::EvalArgs;
use crate::printer::Printer;
use crate::progress::Console;
use crate::table::{Align, Table};
use kvant::{Error, Evaluation as Request, EvaluationReport};
use kvant_llm::evaluation::{Comparison, Evaluation};

/// Evaluates a model.
///
/// # Errors
/// Whatever is wrong with the model, its tokenizer or the data.
pub fn run(args: EvalArgs, printer: &Printer) -> Result<(), Error> {
    let mut console = Console::new(printer);
    let cancel = console.cancel();
    let report = Request::from(args).run(&mut console, &cancel)?;
    drop(console);
    if let EvaluationReport::Graph(report) = &report {
        eval_graph::warn_of_kernels(report, printer);
    }
    if printer.is_json() {
        return printer.json("eval", &report.to_json());
    }
    printer.data(&match &report {
        EvaluationReport::Text(report) => text(&report.found, &report.activations, printer.width()),
        EvaluationReport::Graph(report) => eval_graph::text(report, printer.width()),
    })
}

fn text(found: &Evaluation, activations: &[String], width: usize) -> String {
    let activations = activations.iter().map(|line| format!("\nquantized activations: {line}"));
    let summary = format!("{}{}", summary(found).render(width), activations.collect::<String>());
    match &found.comparison {
        Some(comparison) => {
            format!("{summary}\n\n{}\n\n{}", distance(comparison).render(width), blocks(comparison).render(width))
        }
        None => summary,
    }
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
