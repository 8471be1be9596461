//! Findings of checks in words.

use kvant_quant::finding::{Finding, Severity};

/// The error for a model that does not pass.
pub fn failing(path: &str, findings: &[Finding]) -> String {
    let errors: Vec<&Finding> = findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
    match errors.as_slice() {
        [] => format!("{path} does not pass"),
        [first] => format!("{path} does not pass: {}: {}", first.place, first.reason),
        [first, more @ ..] => {
            format!("{path} does not pass: {}: {}, and {} more errors", first.place, first.reason, more.len())
        }
    }
}
