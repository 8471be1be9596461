//! `kvant verify`: whether a finished model loads, and whether it is sane.

use crate::args::VerifyArgs;
use crate::counts;
use crate::failure::{Failure, Kind};
use crate::findings;
use crate::onnx;
use crate::printer::Printer;
use crate::table::{Align, Table};
use kvant_llm::verify::{Loads, Options, Reads, Reason, Report, Verdict, loaders, verify};
use serde_json::{Value, json};

/// Verifies and prints what was found.
///
/// # Errors
/// [`Kind::Unfit`] for a model that does not pass; whatever keeps it from being read.
pub fn run(args: &VerifyArgs, printer: &Printer) -> Result<(), Failure> {
    if onnx::is_graph(&args.model) {
        return onnx::verify::run(args, printer);
    }
    let report = verify(&args.model, &options(args))?;
    match printer.is_json() {
        true => printer.json("verify", &object(&report))?,
        false => printer.data(&text(&report, args, printer.width()))?,
    }
    if report.passes() { Ok(()) } else { Err(unfit(args, &report)) }
}

fn options(args: &VerifyArgs) -> Options {
    let loader = args.loader.as_deref().and_then(|id| loaders().iter().find(|loader| loader.id == id));
    Options {
        reads: if args.quick { Reads::Headers } else { Reads::Weights },
        loader: loader.map(|loader| loader.id.as_str()),
        tensor_parallel: args.tensor_parallel.map(usize::from),
    }
}

fn unfit(args: &VerifyArgs, report: &Report) -> Failure {
    let path = args.model.display();
    let asked = args.loader.as_deref().and_then(|id| report.verdicts.iter().find(|verdict| verdict.id == id));
    let message = match asked {
        Some(verdict) => format!("{path} does not load in {}: {}", verdict.loader, why_not(verdict, args)),
        None => findings::failing(&path.to_string(), &report.findings),
    };
    Failure::new(Kind::Unfit, message)
}

fn why_not(verdict: &Verdict, args: &VerifyArgs) -> String {
    match (verdict.reasons.first(), args.tensor_parallel) {
        (Some(reason), _) => in_words(reason),
        (None, Some(ways)) => format!("it cannot be shared out over {ways} devices"),
        (None, None) => "its rules do not say why".to_owned(),
    }
}

fn in_words(reason: &Reason) -> String {
    match reason.more {
        0 => format!("{}: {}", reason.place, reason.reason),
        more => format!("{} and {more} more: {}", reason.place, reason.reason),
    }
}

fn object(report: &Report) -> Value {
    json!({
        "model": report.path.display().to_string(),
        "passes": report.passes(),
        "family": report.family,
        "method": report.method,
        "tensors": report.tensors,
        "quantized_layers": report.quantized_layers,
        "findings": report.findings,
        "loaders": report.verdicts,
    })
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
