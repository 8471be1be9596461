//! config.json: there, readable, of an architecture that is known.

use super::DAMAGED;
use crate::import::survey::Subject as About;
use crate::verify::subject::Subject;
use kvant_container::ErrorKind;
use kvant_quant::finding::{Findings, Severity};

pub(super) fn run(subject: &Subject<'_>, findings: &mut Findings) {
    if let Some(error) = &subject.config_error {
        return findings.error("config.json", error, DAMAGED);
    }
    if subject.json.is_none() {
        return missing(subject, findings);
    }
    let stated = subject.json.as_ref().and_then(|json| json.get("quantization_config"));
    if stated.is_some_and(|stated| !stated.is_object() && !stated.is_null()) {
        findings.error("config.json", "its quantization_config is no object", DAMAGED);
    }
    if subject.config.model_types.is_empty() && subject.config.architectures.is_empty() {
        findings.error(
            "config.json",
            "names neither a model_type nor architectures",
            "take it from the original model",
        );
    } else if subject.network.family().is_none() {
        let name = subject.config.architectures.first().or(subject.config.model_types.first());
        let reason = format!("no description of the architecture `{}`", name.map_or("", String::as_str));
        findings.warning("config.json", reason, "names and shapes of its tensors are not checked");
    }
    for problem in subject.survey.problems.iter().filter(|problem| problem.subject == About::Configuration) {
        // What Kvant does not read may load well elsewhere.
        let is_unread = problem.error.kind() == ErrorKind::Unsupported;
        let severity = if is_unread { Severity::Warning } else { Severity::Error };
        let hint = if is_unread { "scales and codes are not checked" } else { DAMAGED };
        findings.add(severity, "config.json", problem.error.to_string(), hint);
    }
}

/// A file alone has none; a directory must have one.
fn missing(subject: &Subject<'_>, findings: &mut Findings) {
    if subject.checkpoint.path().is_dir() {
        findings.error("config.json", "is missing", "copy it from the original model");
    } else {
        let hint = "give the directory to have names, shapes and loaders checked";
        findings.note("config.json", "is not looked at: a file alone was given", hint);
    }
}
