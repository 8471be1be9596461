//! How quantized layers are stored: that the tensors of each are there, with the shapes and types of the scheme that
//! config.json gives it.

use super::DAMAGED;
use crate::format::FormatHandle;
use crate::import::survey::ProblemKind as About;
use crate::verify::statement::QuantConfig;
use crate::verify::subject::CheckpointView;
use kvant_container::Diagnostic;
use kvant_container::ErrorKind;
use kvant_quant::finding::{Findings, Severity};
use kvant_weights::import_error::ImportError;

/// Formats whose loaders look for codes wherever config.json states them. Others find codes by their tensors, or take floats too.
const TAKEN_AT_THEIR_WORD: [FormatHandle; 6] = [
    FormatHandle::AWQ,
    FormatHandle::COMPRESSED_TENSORS,
    FormatHandle::FP8,
    FormatHandle::GPTQ,
    FormatHandle::GPTQ_V2,
    FormatHandle::QUARK,
];

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    if let Some(statement) = subject.statement.as_ref().filter(|statement| is_unmet(subject, statement)) {
        let reason =
            format!("states a quantization (`{}`), and no layer has codes: loaders look for them", statement.method);
        let hint = "take `quantization_config` out of config.json, if these are the floats";
        findings.error("config.json", reason, hint);
    }
    for name in subject.statement.iter().flat_map(|statement| statement.described()) {
        if subject.weight(name).is_none() && !subject.is_unread(name) {
            findings.error(name, "is described in the metadata of the files, and its codes are missing", DAMAGED);
        }
    }
    for problem in subject.survey.problems.iter().filter(|problem| problem.subject == About::Weight) {
        let is_unread = problem.error.kind() == ErrorKind::Unsupported;
        let severity = if is_unread { Severity::Warning } else { Severity::Error };
        let hint = if is_unread { "Kvant does not read it, and has not checked it" } else { DAMAGED };
        let (place, reason) = said(&problem.error, &problem.module);
        findings.add(severity, place, reason, hint);
    }
}

/// Returns whether config.json states that layers are quantized, and nothing in the checkpoint is.
fn is_unmet(subject: &CheckpointView<'_>, statement: &QuantConfig) -> bool {
    let survey = &subject.survey;
    let has_codes = !survey.weights.is_empty() || !survey.convolutions.is_empty() || !survey.biases.is_empty();
    let has_rounded = !survey.rounded.is_empty();
    let has_scales = !survey.parameters.is_empty() || !survey.attention.is_empty();
    let reader = FormatHandle::reading(&statement.method).filter(|format| TAKEN_AT_THEIR_WORD.contains(format));
    if has_codes || has_rounded || has_scales || !survey.problems.is_empty() || reader.is_none() {
        return false;
    }
    let mut floats = subject.float_linears().filter(|linear| !linear.role.is_kept_by_default());
    floats.any(|linear| statement.quantizes(&linear.module))
}

/// An error and its location.
pub(super) fn said(error: &ImportError, module: &str) -> (String, String) {
    match error {
        ImportError::Invalid { place, reason } | ImportError::Unsupported { place, reason, .. } => {
            (place.clone(), reason.clone())
        }
        other => (module.to_owned(), other.to_string()),
    }
}
