//! `kvant verify model.onnx`: whether a graph runs, and whether its quantization is sane.

use super::opening::{self, BY_RULES, Opening};
use crate::args::VerifyArgs;
use crate::counts;
use crate::failure::{Failure, Kind};
use crate::findings;
use crate::printer::Printer;
use kvant_container::onnx::ModelProto;
use kvant_llm::verify::{Loader, loaders};
use kvant_onnx::verify::fails_in_a_run;
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
    let (nodes, mut findings, fails) = match kvant_container::onnx::read(&args.model) {
        Ok(model) => (model.graph.node.len(), kvant_onnx::verify::verify(&model), fails_in_a_run(&model)),
        Err(error) => (0, vec![kvant_onnx::verify::unread(error)?], false),
    };
    // A file that cannot be read is not given to a library that may crash over it.
    let opening = if nodes == 0 { Opening::Unknown } else { opening::ask(&args.model, None) };
    refusal(&opening, &args.model, &mut findings);
    let runs = !fails && runs(&opening, &findings);
    let passes = passes(args, &findings, runs);
    let path = args.model.display().to_string();
    match printer.is_json() {
        true => printer.json("verify", &object((&path, nodes), passes, &findings, &opening, runs))?,
        false => printer.data(&text(nodes, (&findings, args.all), &opening, runs, printer.width()))?,
    }
    match passes {
        true => Ok(()),
        false => Err(Failure::new(Kind::Unfit, message(args, &path, &findings))),
    }
}

/// What ONNX Runtime says to a graph, or the rules where it is not there.
fn runs(opening: &Opening, findings: &[Finding]) -> bool {
    match opening {
        Opening::Opens(_) => true,
        Opening::Refuses { .. } => false,
        Opening::Unknown => kvant_onnx::verify::runs(findings),
    }
}

/// Adds what ONNX Runtime refuses and no rule has found. What the rules explain may run elsewhere, and is told once.
fn refusal(opening: &Opening, model: &Path, findings: &mut Vec<Finding>) {
    let Opening::Refuses { engine, problem, .. } = opening else { return };
    if !kvant_onnx::verify::runs(findings) {
        return;
    }
    let (place, reason) = (model.display().to_string(), format!("{engine} does not open it: {problem}"));
    let hint = Some("quantize it again with other options; report it if Kvant has made it".to_owned());
    findings.insert(0, Finding { check: "opening", severity: Severity::Error, place, reason, hint });
}

/// Refuses to give a graph its name that does not pass. Whether ONNX Runtime runs it, as far as is known.
///
/// # Errors
/// What is wrong with it, and how to have it all the same.
pub fn accept(model: &ModelProto, output: &Path) -> Result<bool, Failure> {
    let found = kvant_onnx::verify::verify(model);
    if found.iter().all(|finding| finding.severity != Severity::Error) {
        return Ok(kvant_onnx::verify::runs(&found));
    }
    let failure = Failure::new(Kind::Invalid, findings::failing(&output.display().to_string(), &found));
    Err(failure.with_hint(Some("use --no-verify to write it anyway".to_owned())))
}

fn reads_graphs(loader: &Loader) -> bool {
    loader.layout.iter().any(|layout| layout.method == LAYOUT)
}

fn loader(args: &VerifyArgs) -> Option<&'static Loader> {
    loaders().iter().find(|loader| args.loader.as_ref() == Some(&loader.id))
}

fn passes(args: &VerifyArgs, findings: &[Finding], runs: bool) -> bool {
    match loader(args) {
        Some(loader) => reads_graphs(loader) && runs,
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

fn verdicts(runs: bool) -> Vec<Value> {
    let verdict = |loader: &Loader| {
        let loads = if reads_graphs(loader) && runs { "yes" } else { "no" };
        json!({
            "id": loader.id, "loader": loader.name, "version": loader.version, "loads": loads,
            "needs": null, "reasons": [], "slow": [], "tensor_parallel": [],
        })
    };
    loaders().iter().map(verdict).collect()
}

fn object((path, nodes): (&str, usize), passes: bool, findings: &[Finding], opening: &Opening, runs: bool) -> Value {
    let verdicts = verdicts(runs);
    json!({
        "model": path,
        "passes": passes,
        "method": LAYOUT,
        "nodes": nodes,
        "findings": findings,
        "loaders": verdicts,
        "onnxruntime": opening.object(),
    })
}

fn text(nodes: usize, (found, all): (&[Finding], bool), opening: &Opening, runs: bool, width: usize) -> String {
    let said = match (opening, runs) {
        (Opening::Opens(engine), true) => format!("{engine} opens it"),
        (Opening::Opens(engine), false) => format!("{engine} opens it and does not run it"),
        (Opening::Refuses { engine, .. }, _) => format!("{engine} does not open it"),
        (Opening::Unknown, true) => format!("ONNX Runtime runs it, {BY_RULES}"),
        (Opening::Unknown, false) => "ONNX Runtime does not run it".to_owned(),
    };
    let head = format!("{}: {}; {said}", counts::number(nodes, "node"), findings::count(found));
    match found {
        [] => head,
        found => format!("{head}\n\n{}", findings::table(found, all).render(width)),
    }
}
