//! `kvant verify model.onnx`: whether a graph runs, and whether its quantization is sane.

use crate::args::VerifyArgs;
use crate::failure::{Failure, Kind};
use crate::findings;
use crate::printer::Printer;
use kvant_container::onnx::ModelProto;
use kvant_llm::verify::{Loader, loaders};
use kvant_quant::finding::{Finding, Severity};
use serde_json::{Value, json};
use std::path::Path;

/// The layout in the table of loaders.
const LAYOUT: &str = "onnx";

/// Verifies and prints what was found.
///
/// # Errors
/// [`Kind::Unfit`] for a graph that does not pass; whatever keeps it from being read.
pub fn run(args: &VerifyArgs, printer: &Printer) -> Result<(), Failure> {
    let (nodes, findings) = match kvant_container::onnx::read(&args.model) {
        Ok(model) => (model.graph.node.len(), kvant_onnx::verify::verify(&model)),
        Err(error) => (0, vec![kvant_onnx::verify::unread(error)?]),
    };
    let passes = passes(args, &findings);
    let path = args.model.display().to_string();
    match printer.is_json() {
        true => printer.json(&object(&path, passes, &findings))?,
        false => printer.data(&text(nodes, &findings, args.all))?,
    }
    match passes {
        true => Ok(()),
        false => Err(Failure::new(Kind::Unfit, message(args, &path, &findings))),
    }
}

/// Refuses to give a graph its name that does not pass.
///
/// # Errors
/// What is wrong with it, and how to have it all the same.
pub fn accept(model: &ModelProto, output: &Path) -> Result<(), Failure> {
    let found = kvant_onnx::verify::verify(model);
    if found.iter().all(|finding| finding.severity != Severity::Error) {
        return Ok(());
    }
    let failure = Failure::new(Kind::Invalid, findings::failing(&output.display().to_string(), &found));
    Err(failure.with_hint(Some("the same command with --no-verify writes it all the same".to_owned())))
}

fn reads_graphs(loader: &Loader) -> bool {
    loader.layout.iter().any(|layout| layout.method == LAYOUT)
}

fn loader(args: &VerifyArgs) -> Option<&'static Loader> {
    loaders().iter().find(|loader| args.loader.as_ref() == Some(&loader.id))
}

fn passes(args: &VerifyArgs, findings: &[Finding]) -> bool {
    match loader(args) {
        Some(loader) => reads_graphs(loader) && kvant_onnx::verify::runs(findings),
        None => findings.iter().all(|finding| finding.severity != Severity::Error),
    }
}

fn message(args: &VerifyArgs, path: &str, findings: &[Finding]) -> String {
    match loader(args) {
        Some(loader) if !reads_graphs(loader) => format!("{} does not read ONNX graphs", loader.name),
        Some(loader) => match findings.first() {
            Some(first) => format!("{path} does not run in {}: {}: {}", loader.name, first.place, first.reason),
            None => format!("{path} does not run in {}", loader.name),
        },
        None => findings::failing(path, findings),
    }
}

fn verdicts(findings: &[Finding]) -> Vec<Value> {
    let runs = kvant_onnx::verify::runs(findings);
    let verdict = |loader: &Loader| {
        let loads = if reads_graphs(loader) && runs { "yes" } else { "no" };
        json!({ "id": loader.id, "loader": loader.name, "version": loader.version, "loads": loads })
    };
    loaders().iter().map(verdict).collect()
}

fn object(path: &str, passes: bool, findings: &[Finding]) -> Value {
    json!({ "model": path, "passes": passes, "findings": findings, "loaders": verdicts(findings) })
}

fn text(nodes: usize, found: &[Finding], all: bool) -> String {
    let runs = match kvant_onnx::verify::runs(found) {
        true => "ONNX Runtime runs it, as far as is known",
        false => "ONNX Runtime does not run it",
    };
    let head = format!("{nodes} nodes: {}; {runs}", findings::count(found));
    match found {
        [] => head,
        found => format!("{head}\n\n{}", findings::table(found, all).render()),
    }
}
