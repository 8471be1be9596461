//! How quantized layers are stored: that the tensors of each are there, with the shapes and types of the scheme that
//! config.json gives it.

use super::DAMAGED;
use crate::import::survey::ProblemKind as About;
use crate::verify::subject::CheckpointView;
use kvant_container::Diagnostic;
use kvant_container::ErrorKind;
use kvant_quant::finding::{Findings, Severity};
use kvant_weights::import_error::ImportError;

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
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

/// An error and its location.
pub(super) fn said(error: &ImportError, module: &str) -> (String, String) {
    match error {
        ImportError::Invalid { place, reason } | ImportError::Unsupported { place, reason, .. } => {
            (place.clone(), reason.clone())
        }
        other => (module.to_owned(), other.to_string()),
    }
}
