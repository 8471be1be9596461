//! A finding of a check: the check, its severity, the object, the reason and a remedy. Not the checks:
//! those of checkpoints and of graphs are in their crates.

use serde::Serialize;
use std::fmt;

/// The severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The model does not load, or computes something else than it should.
    Error,
    /// Some loaders fail, or precision is lost.
    Warning,
    /// Worth knowing.
    Note,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        })
    }
}

/// One thing that a check has found.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Finding {
    /// The name of the check.
    pub check: &'static str,
    /// The severity.
    pub severity: Severity,
    /// The tensor, layer, file or field.
    pub place: String,
    /// The problem.
    pub reason: String,
    /// The remedy, if one is known.
    pub hint: Option<String>,
}

/// Collects the findings of one check.
#[derive(Debug)]
pub struct Findings {
    check: &'static str,
    list: Vec<Finding>,
}

impl Findings {
    /// None so far.
    pub fn of(check: &'static str) -> Findings {
        Findings { check, list: Vec::new() }
    }

    /// Adds one.
    pub fn add(&mut self, severity: Severity, place: impl Into<String>, reason: impl Into<String>, hint: &str) {
        let hint = (!hint.is_empty()).then(|| hint.to_owned());
        self.list.push(Finding { check: self.check, severity, place: place.into(), reason: reason.into(), hint });
    }

    /// Adds an error.
    pub fn error(&mut self, place: impl Into<String>, reason: impl Into<String>, hint: &str) {
        self.add(Severity::Error, place, reason, hint);
    }

    /// Adds a warning.
    pub fn warning(&mut self, place: impl Into<String>, reason: impl Into<String>, hint: &str) {
        self.add(Severity::Warning, place, reason, hint);
    }

    /// Adds a note.
    pub fn note(&mut self, place: impl Into<String>, reason: impl Into<String>, hint: &str) {
        self.add(Severity::Note, place, reason, hint);
    }

    /// All of them, in the order in which they were added.
    pub fn into_vec(self) -> Vec<Finding> {
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_sort_errors_before_warnings_and_notes() {
        let mut findings = Findings::of("scales");
        findings.note("a", "is odd", "");
        findings.error("b", "is NaN", "download it again");
        let mut list = findings.into_vec();
        list.sort_by_key(|finding| finding.severity);
        assert_eq!((list[0].place.as_str(), list[0].hint.as_deref()), ("b", Some("download it again")));
        assert_eq!((list[1].severity, list[1].hint.as_deref()), (Severity::Note, None));
        assert_eq!(serde_json::to_value(&list[1]).unwrap()["severity"], "note");
    }
}
