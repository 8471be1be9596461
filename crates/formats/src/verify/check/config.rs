//! config.json: there, readable, of an architecture that is known.

use super::{DAMAGED, stated_sizes, stated_values};
use crate::format::tensors::TENSORS_METHOD;
use crate::format::{comfyui, mlx};
use crate::import::survey::ProblemKind as About;
use crate::verify::subject::CheckpointView;
use kvant_container::Diagnostic;
use kvant_container::ErrorKind;
use kvant_model::network::Notice;
use kvant_quant::finding::{Findings, Severity};
use std::io::Read;

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    if let Some(error) = &subject.config_error {
        return findings.error("config.json", of_the_file(error), DAMAGED);
    }
    if subject.json.is_none() {
        return missing(subject, findings);
    }
    no_object(subject, findings);
    stated_for_mlx(subject, findings);
    unnamed(subject, findings);
    stated_sizes::run(subject, findings);
    stated_values::run(subject, findings);
    marked(subject, findings);
    if !is_unnamed(subject) && subject.network.family().is_none() && !subject.config.is_component {
        let name = subject.config.architectures.first().or(subject.config.model_types.first());
        let reason = format!("no description of the architecture `{}`", name.map_or("", String::as_str));
        let is_of_use = |notice: &Notice| matches!(notice, Notice::UnknownArchitecture { can_be_described: true, .. });
        let hint = match subject.network.notices().iter().any(is_of_use) {
            true => "names and shapes of its tensors are not checked; ‹family› takes a description",
            false => "names and shapes of its tensors are not checked",
        };
        findings.warning("config.json", reason, hint);
    }
    for problem in subject.survey.problems.iter().filter(|problem| problem.subject == About::Configuration) {
        // What Kvant does not read may load well elsewhere.
        let is_unread = problem.error.kind() == ErrorKind::Unsupported;
        let severity = if is_unread { Severity::Warning } else { Severity::Error };
        let hint = if is_unread { "scales and codes are not checked" } else { DAMAGED };
        findings.add(severity, "config.json", of_the_file(&problem.error.to_string()), hint);
    }
}

fn no_object(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let stated = subject.json.as_ref().and_then(|json| json.get("quantization_config"));
    if stated.is_some_and(|stated| !stated.is_object() && !stated.is_null()) {
        findings.error("config.json", "its quantization_config is not an object", DAMAGED);
    }
}

/// A quantization of the source that Kvant cannot read: nothing can be made of such a source, even if loaders can use it.
pub(super) fn quantization(subject: &CheckpointView<'_>, findings: &mut Findings) {
    no_object(subject, findings);
    stated_for_mlx(subject, findings);
    for problem in subject.survey.problems.iter().filter(|problem| problem.subject == About::Configuration) {
        let hint = "use the model that this one was quantized from";
        findings.error("config.json", of_the_file(&problem.error.to_string()), hint);
    }
}

/// What mlx-lm reads of the quantization, which is stated twice.
fn stated_for_mlx(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let is_of_mlx = subject.method() == mlx::METHOD;
    if is_of_mlx && !subject.json.as_ref().is_some_and(|json| json.get(mlx::KEY).is_some_and(mlx::is_stated)) {
        let hint = "copy it from `quantization_config`";
        findings.error(
            "config.json",
            "has no `quantization` with bits and group_size, which is what mlx-lm reads",
            hint,
        );
    } else if is_of_mlx && subject.json.as_ref().is_some_and(mlx::contradicts_itself) {
        let reason = "its `quantization` and `quantization_config` differ: mlx-lm reads the former";
        findings.warning("config.json", reason, "make them equal");
    }
}

/// A message whose reader knows already which file it is of.
fn of_the_file(message: &str) -> &str {
    let named = message.strip_prefix("config.json").map(|rest| rest.trim_start_matches(':').trim_start());
    named.unwrap_or(message)
}

fn is_unnamed(subject: &CheckpointView<'_>) -> bool {
    subject.json.is_some() && subject.config.model_types.is_empty() && subject.config.architectures.is_empty()
}

/// A configuration that does not say what of.
pub(super) fn unnamed(subject: &CheckpointView<'_>, findings: &mut Findings) {
    if is_unnamed(subject) {
        let hint = "take it from the original model";
        findings.error("config.json", "names neither a model_type nor architectures", hint);
    }
}

/// A byte order mark before config.json, which Python's parser refuses.
fn marked(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let mut first = [0; 3];
    let Some(directory) = subject.checkpoint.directory() else { return };
    let file = std::fs::File::open(directory.join("config.json"));
    let is_read = file.and_then(|mut file| file.read_exact(&mut first)).is_ok();
    if is_read && first == *b"\xEF\xBB\xBF" {
        let reason = "begins with a byte order mark: transformers refuses to parse it";
        findings.error("config.json", reason, "save it as UTF-8 without a byte order mark");
    }
}

/// A file alone has none, and neither have tensors that say of themselves that they are no model; a directory must have one.
fn missing(subject: &CheckpointView<'_>, findings: &mut Findings) {
    if subject.method() == TENSORS_METHOD {
        let reason = "it is missing: the files describe their own tensors, but no runtime loads them as a model";
        return findings.note("config.json", reason, "");
    }
    if subject.method() == comfyui::METHOD {
        return;
    }
    if subject.checkpoint.path().is_dir() {
        findings.error("config.json", "is missing", "copy it from the original model");
    } else {
        let hint = "put config.json next to it, or give the directory, to check names, shapes and loaders";
        findings.note("config.json", "it is missing: only a file was given", hint);
    }
}
