//! Checks that a graph runs and that its quantization is valid.

use super::opening::{self, Opening};
use crate::error::{Error, ErrorKind};
use crate::findings::failing;
use crate::job::Verification;
use crate::settings::first_given;
use kvant_container::Remedy;
use kvant_container::onnx::{ModelProto, read};
use kvant_formats::verify::{Loader, loaders};
use kvant_onnx::fusions::{Fusions, UnfusedPair};
use kvant_onnx::verify::fails_in_a_run;
use kvant_quant::finding::{Finding, Severity};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The layout in the table of loaders.
const LAYOUT: &str = "onnx";

/// Verifies a graph.
///
/// # Errors
/// Whatever keeps it from being read.
pub fn run(request: &Verification) -> Result<GraphVerdict, Error> {
    let foreign = [(request.tensor_parallel.is_some(), "‹tensor-parallel›"), (request.quick, "‹quick›")];
    if let Some(setting) = first_given(&foreign) {
        let failure = Error::new(ErrorKind::Usage, format!("{setting} does not apply to an ONNX graph"));
        return Err(
            failure.with_hint(Some("leave it out: a graph is read completely and runs on one device".to_owned()))
        );
    }
    // It stays mapped to the end: what the engine says of a file that is rewritten meanwhile is then refused too.
    let source = match read(&request.model) {
        Ok(model) => Ok(model),
        Err(error) => Err(kvant_onnx::verify::unread(error)?),
    };
    let (nodes, mut findings, fails) = match &source {
        Ok(model) => (kvant_onnx::count::nodes(&model.graph), kvant_onnx::verify::verify(model), fails_in_a_run(model)),
        Err(finding) => (0, vec![finding.clone()], false),
    };
    // A file that cannot be read is not given to a library that may crash over it.
    let opening = if nodes == 0 { Opening::Unknown } else { opening::ask(&request.model, &request.engine) };
    refusal(&opening, &request.model, &mut findings);
    let runs = !fails && runs(&opening, &findings);
    let loader = loaders().iter().find(|loader| request.loader.as_ref() == Some(&loader.id));
    // Rules hold for sound graphs.
    let sound = source.as_ref().ok().filter(|model| kvant_onnx::graph::check(model).is_ok());
    let fusions = sound.filter(|_| request.fusions).map(Fusions::of);
    Ok(GraphVerdict { model: request.model.clone(), nodes, findings, opening, runs, fusions, loader })
}

/// The findings of a graph.
pub struct GraphVerdict {
    /// The graph.
    pub model: PathBuf,
    /// Its nodes.
    pub nodes: usize,
    /// The findings of the checks.
    pub findings: Vec<Finding>,
    /// The answer of ONNX Runtime.
    pub opening: Opening,
    /// Whether ONNX Runtime runs it, if known.
    pub runs: bool,
    /// The nodes that quantize and dequantize still when ONNX Runtime has optimized it, if asked for and if the graph is sound.
    pub fusions: Option<Fusions>,
    loader: Option<&'static Loader>,
}

impl GraphVerdict {
    /// Returns whether it passes: all checks, or the requested loader alone.
    pub fn passes(&self) -> bool {
        match self.loader {
            Some(loader) => reads_graphs(loader) && self.runs,
            None => self.findings.iter().all(|finding| finding.severity != Severity::Error),
        }
    }

    /// The reason that it does not pass.
    pub fn problem(&self) -> String {
        let path = self.model.display().to_string();
        match self.loader {
            Some(loader) if !reads_graphs(loader) => format!("{} does not read ONNX graphs", loader.name),
            Some(loader) => match self.findings.first() {
                Some(first) => format!("{path} does not run in {}: {}: {}", loader.name, first.place, first.reason),
                None => format!("{path} does not run in {}", loader.name),
            },
            None => failing(&path, &self.findings),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "model": self.model.display().to_string(),
            "passes": self.passes(),
            "method": LAYOUT,
            "nodes": self.nodes,
            "findings": self.findings,
            "loaders": verdicts(self.runs),
            "onnxruntime": self.opening.object(),
            "fusions": self.fusions.as_ref().map(fusions_json),
        })
    }
}

fn fusions_json(fusions: &Fusions) -> Value {
    let pair = |pair: &UnfusedPair| {
        json!({
            "node": pair.node,
            "quantizes": pair.quantizes,
            "tensor": pair.tensor,
            "beside": pair.beside.as_ref().map(|float| json!({"name": float.name, "operator": float.operator})),
            "problem": pair.problem.name(),
            "reason": pair.problem.to_string(),
        })
    };
    json!({"fused": fusions.fused, "unfused": fusions.unfused.iter().map(pair).collect::<Vec<_>>()})
}

/// The answer of ONNX Runtime to a graph, or of the rules without it.
fn runs(opening: &Opening, findings: &[Finding]) -> bool {
    match opening {
        Opening::Opens(_) => true,
        Opening::Refuses { .. } => false,
        Opening::Unknown => kvant_onnx::verify::runs(findings),
    }
}

/// Adds failures of ONNX Runtime, but for graphs that are known to run elsewhere only, and for those that have an error already.
fn refusal(opening: &Opening, model: &Path, findings: &mut Vec<Finding>) {
    let Opening::Refuses { engine, problem, .. } = opening else { return };
    let has_error = findings.iter().any(|finding| finding.severity == Severity::Error);
    if has_error || kvant_onnx::verify::runs_elsewhere(findings) {
        return;
    }
    let (place, reason) = (model.display().to_string(), format!("{engine} does not open it: {problem}"));
    let hint = Some("quantize it again with other options; report it if Kvant has made it".to_owned());
    findings.insert(0, Finding { check: "opening", severity: Severity::Error, place, reason, hint });
}

/// Refuses to commit a graph that does not pass. Returns the findings that do not keep it from being written.
///
/// # Errors
/// The first finding, and the option that skips verification.
pub fn accept(model: &ModelProto, output: &Path) -> Result<Vec<Finding>, Error> {
    let found = kvant_onnx::verify::verify(model);
    if found.iter().all(|finding| finding.severity != Severity::Error) {
        return Ok(found);
    }
    let failure = Error::new(ErrorKind::Invalid, failing(&output.display().to_string(), &found));
    Err(failure.with_remedies(vec![Remedy::SkipVerification("write it anyway")]))
}

fn reads_graphs(loader: &Loader) -> bool {
    loader.layout.iter().any(|layout| layout.method == LAYOUT)
}

fn verdicts(runs: bool) -> Vec<Value> {
    let verdict = |loader: &Loader| {
        let loads = if reads_graphs(loader) && runs { "yes" } else { "no" };
        json!({
            "id": loader.id, "loader": loader.name, "version": loader.version, "loads": loads,
            "needs": null, "reasons": [], "newer": [], "slow": [], "tensor_parallel": [],
        })
    };
    loaders().iter().map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_open_fails_unless_it_runs_elsewhere() {
        let opening = || Opening::Refuses { engine: "engine".to_owned(), problem: "no".to_owned(), is_crash: false };
        let finding = |check: &'static str| Finding {
            check,
            severity: Severity::Warning,
            place: "mine:Op".to_owned(),
            reason: "is new".to_owned(),
            hint: None,
        };
        for (checks, fails) in [
            (&[][..], true),
            (&["versions"], true),
            (&["versions", "operators"], true),
            (&["biases"], true),
            (&["operators"], false),
            (&["kernels"], false),
        ] {
            let mut findings: Vec<Finding> = checks.iter().map(|check| finding(check)).collect();
            refusal(&opening(), Path::new("m.onnx"), &mut findings);
            assert_eq!(findings.iter().any(|finding| finding.check == "opening"), fails, "{checks:?}");
        }
    }
}
