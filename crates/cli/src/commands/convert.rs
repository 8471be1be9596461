//! `kvant convert`: converts, and says what became of the codes.

use crate::args::ConvertArgs;
use crate::printer::Printer;
use crate::progress::Console;
use crate::summary;
use kvant::text::{counts, printable, size};
use kvant::{CheckpointConversion, Conversion, ConversionReport, Error, GgufConversion, GraphConversion, said, worst};

/// Converts a model.
///
/// # Errors
/// What the target does not hold, before anything is written; then what the system or the weights say.
pub fn run(args: ConvertArgs, printer: &Printer) -> Result<(), Error> {
    let is_dry_run = args.dry_run;
    let conversion = Conversion::from(args);
    let mut console = Console::new(printer);
    let cancel = console.cancel();
    let report = match is_dry_run {
        true => conversion.plan(&mut console)?,
        false => conversion.run(&mut console, &cancel)?,
    };
    drop(console);
    let (text, output) = match &report {
        ConversionReport::Checkpoint(report) => (checkpoint_text(report), report.output.as_ref()),
        ConversionReport::Gguf(report) => (gguf_text(report), report.output.as_ref()),
        ConversionReport::Graph(report) => (graph_text(report), report.made.as_ref().map(|made| &made.output)),
    };
    printer.summary(&printable(&text));
    match (output, printer.is_json()) {
        (_, true) => printer.json("convert", &report.to_json()),
        (Some(output), false) => printer.data(&output.display().to_string()),
        (None, false) => Ok(()),
    }
}

fn checkpoint_text(report: &CheckpointConversion) -> String {
    let (kept, requantized) = (report.kept_codes(), report.requantized());
    let mut lines = vec![("to", report.target.to_string())];
    if kept > 0 {
        lines.push(("layers", format!("{kept} with the codes that they have")));
    }
    if requantized > 0 {
        lines.push(("requantized", counts::number(requantized, "layer")));
    }
    lines.extend(worst(&report.errors).map(|worst| ("largest error", said(worst))));
    lines.push(counts::sizes(report.plan.source_bytes, report.plan.layout.total_size()));
    lines.extend(report.time.map(|time| ("time", size::duration(time))));
    summary::with_loaders(lines, &report.plan.loaders(), report.place())
}

fn gguf_text(report: &GgufConversion) -> String {
    let requantized = report.requantized();
    let kept = format!("{} with the codes that they have", report.kept_codes());
    let mut lines = vec![("to", "gguf".to_owned()), ("tensors", kept)];
    if requantized > 0 {
        lines.push(("requantized", counts::number(requantized, "tensor")));
    }
    lines.extend(worst(&report.errors).map(|worst| ("largest error", said(worst))));
    lines.push(counts::sizes(report.plan.source_bytes, report.plan.layout.file_len()));
    lines.extend(report.time.map(|time| ("time", size::duration(time))));
    summary::with_loaders(lines, &report.plan.loaders(), report.place())
}

fn graph_text(report: &GraphConversion) -> String {
    let Some(made) = &report.made else { return "a graph of this decoder, which is not written".to_owned() };
    let nodes = counts::number(made.graph.nodes, "node");
    format!("{nodes}, {}, {}", size::bytes(made.graph.bytes), size::duration(made.time))
}
