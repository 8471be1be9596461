//! `kvant quantize`: quantizes, and says how to load the result.

use super::{plan, quantize_graph};
use crate::args::QuantizeArgs;
use crate::layer_table;
use crate::printer::Printer;
use crate::progress::Console;
use crate::summary::{self, Line};
use kvant::text::{counts, printable, size};
use kvant::{CheckpointReport, Error, GgufReport, Job, Output, Report, loading};
use kvant_llm::format::OutputFormat;
use kvant_quant::scheme::EVALUATION_ONLY;
use serde_json::Value;
use std::path::Path;

/// Quantizes a model: the path on stdout, or one object; the summary on stderr.
///
/// # Errors
/// Whatever can be refused, before anything is written; then what the system or the weights say.
pub fn run(args: QuantizeArgs, printer: &Printer) -> Result<(), Error> {
    let is_dry_run = args.dry_run;
    let job = Job::from(args);
    if is_dry_run {
        return plan::show(&job, false, printer);
    }
    let mut console = Console::new(printer);
    let cancel = console.cancel();
    let report = job.run(&mut console, &cancel)?;
    drop(console);
    show(&report, printer)?;
    report.rejection().map_or(Ok(()), |rejection| Err(rejection.clone()))
}

fn show(report: &Report, printer: &Printer) -> Result<(), Error> {
    match report {
        Report::Checkpoint(report) => {
            let table = report.blocks.as_ref().and_then(|blocks| layer_table::text(blocks, printer.width()));
            table.iter().for_each(|table| printer.summary(table));
            report.warnings().iter().for_each(|warning| printer.warning(warning));
            printer.summary(&printable(&checkpoint_text(report)));
        }
        Report::Gguf(report) => printer.summary(&printable(&gguf_text(report))),
        Report::Graph(_) if printer.is_json() => {}
        Report::Graph(report) => quantize_graph::show(report, printer),
    }
    if printer.is_json() {
        return printer.json("quantize", &report.to_json());
    }
    let outputs: Vec<String> = report.outputs().iter().map(|path| path.display().to_string()).collect();
    if outputs.is_empty() { Ok(()) } else { printer.data(&outputs.join("\n")) }
}

fn checkpoint_text(report: &CheckpointReport) -> String {
    let head = [counts::layers(&report.plan)];
    let is_evaluated = report.plan.layers.iter().any(|layer| layer.scheme.weight.is_for_evaluation_only());
    let tail = [("time", size::duration(report.time))].into_iter();
    let tail = tail.chain(is_evaluated.then(|| ("use", EVALUATION_ONLY.to_owned())));
    let tail = tail.chain(report.measured.as_ref().map(quality_line));
    if report.delivered.also.is_empty() {
        let made = &report.delivered.main;
        let lines = head.into_iter().chain(output_lines(report, made)).chain(tail).chain(bare(made));
        return summary::with_loaders(lines, &made.loaders, &made.path);
    }
    let outputs = report.delivered.all().map(|made| {
        let lines = [("format", made.format.to_owned())].into_iter().chain(output_lines(report, made));
        summary::with_loaders(lines.chain(bare(made)), &made.loaders, &made.path)
    });
    let head = summary::with_loaders(head.into_iter().chain(tail), &[], Path::new(""));
    std::iter::once(head).chain(outputs).collect::<Vec<_>>().join("\n\n")
}

/// What differs from output to output.
fn output_lines(report: &CheckpointReport, made: &Output) -> [Line; 2] {
    [counts::sizes(report.plan.source_bytes, made.bytes), counts::bits(made.bits_per_weight, "layers")]
}

/// That no runtime loads an output, where that is so.
fn bare(made: &Output) -> Option<Line> {
    (made.format == OutputFormat::TENSORS.name()).then(|| ("load it with", loading::NO_RUNTIME.to_owned()))
}

fn gguf_text(report: &GgufReport) -> String {
    let plan = &report.plan;
    let (title, tensors) = counts::tensors(plan);
    let lines = [
        (title, format!("{tensors} ({} was asked for)", plan.recipe.mix())),
        counts::sizes(plan.source_bytes, plan.layout.file_len()),
        counts::bits(plan.bits_per_weight(), "tensors"),
        ("time", size::duration(report.time)),
    ];
    let lines = lines.into_iter().chain(report.measured.as_ref().map(quality_line));
    summary::with_loaders(lines, &plan.loaders(), &report.output)
}

/// How far a result is from its source.
fn quality_line(measured: &Value) -> Line {
    let number = |key: &str| measured[key].as_f64().unwrap_or(f64::NAN);
    let text = format!(
        "KL divergence {:.6} nats, perplexity {:.4} (source: {:.4}, {:+.2} %)",
        number("kl_mean"),
        number("perplexity"),
        number("reference_perplexity"),
        number("perplexity_increase_percent"),
    );
    ("vs. source", text)
}
