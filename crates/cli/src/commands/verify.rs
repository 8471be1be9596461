//! `kvant verify`: whether a finished model loads, and whether it is sane.

use crate::args::VerifyArgs;
use crate::printer::Printer;
use crate::table::{Align, Table};
use crate::{findings, interrupt};
use kvant::text::counts;
use kvant::{Error, ErrorKind, GraphVerdict, Opening, Verification, VerificationReport, in_words};
use kvant_llm::verify::{Loads, Report, Verdict};

/// Verifies and prints what was found.
///
/// # Errors
/// [`ErrorKind::Unfit`] for a model that does not pass; whatever keeps it from being read.
pub fn run(args: &VerifyArgs, printer: &Printer) -> Result<(), Error> {
    interrupt::exit_on_signal();
    let report = Verification::from(args).run()?;
    match (&report, printer.is_json()) {
        (_, true) => printer.json("verify", &report.to_json())?,
        (VerificationReport::Checkpoint(found), false) => {
            printer.data(&text(&found.report, args, printer.width()))?;
        }
        (VerificationReport::Graph(found), false) => printer.data(&graph_text(found, args.all, printer.width()))?,
    }
    if report.passes() { Ok(()) } else { Err(Error::new(ErrorKind::Unfit, report.problem())) }
}

fn text(report: &Report, args: &VerifyArgs, width: usize) -> String {
    let mut parts = vec![head(report)];
    if !report.findings.is_empty() {
        parts.push(findings::table(&report.findings, args.all).render(width));
    }
    parts.push(table_of_loaders(report, args.loader.as_deref()).render(width));
    parts.join("\n\n")
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

/// Every loader, or the one that was asked for.
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

/// Why not, or under which conditions.
fn why(verdict: &Verdict) -> String {
    let more = verdict.reasons.len().saturating_sub(1);
    let first = verdict.reasons.first().map(in_words);
    match (first, verdict.needs) {
        (Some(first), _) if more == 1 => format!("{first} (and another reason)"),
        (Some(first), _) if more > 1 => format!("{first} (and {more} more reasons)"),
        (Some(first), _) => first,
        (None, Some(needs)) => format!("with {needs}"),
        (None, None) => verdict.slow.first().map(|reason| format!("slow: {}", in_words(reason))).unwrap_or_default(),
    }
}

fn graph_text(found: &GraphVerdict, all: bool, width: usize) -> String {
    let opening = match (&found.opening, found.runs) {
        (Opening::Opens(engine), true) => format!("{engine} opens it"),
        (Opening::Opens(engine), false) => format!("{engine} opens it and does not run it"),
        (Opening::Refuses { engine, .. }, _) => format!("{engine} does not open it"),
        (Opening::Unknown, true) => "ONNX Runtime runs it, as far as is known of its rules".to_owned(),
        (Opening::Unknown, false) => "ONNX Runtime does not run it".to_owned(),
    };
    let head = format!("{}: {}; {opening}", counts::number(found.nodes, "node"), findings::count(&found.findings));
    match found.findings.as_slice() {
        [] => head,
        findings => format!("{head}\n\n{}", findings::table(findings, all).render(width)),
    }
}
