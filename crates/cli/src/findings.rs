//! Findings of checks as they are shown: alike ones together, the worst first.

use crate::pattern;
use crate::table::{Align, Table};
use kvant_quant::finding::{Finding, Severity};

/// All findings; those that differ in the numbers of their places only in one line, unless `all` are asked for.
pub fn table(findings: &[Finding], all: bool) -> Table {
    let titles = ["", "check", "where", "what", "way out"].map(|title| (title, Align::Left));
    let mut table = Table::new(&titles);
    let row = |table: &mut Table, finding: &Finding, place: &str| {
        let hint = finding.hint.as_deref().unwrap_or_default();
        table.push([finding.severity.to_string().as_str(), finding.check, place, &finding.reason, hint]);
    };
    if all {
        findings.iter().for_each(|finding| row(&mut table, finding, &finding.place));
        return table;
    }
    let item = |finding: &Finding| (finding.place.clone(), Finding { place: String::new(), ..finding.clone() }, 1);
    for group in pattern::group(findings.iter().map(item)) {
        row(&mut table, &group.key, &group.to_string());
    }
    table
}

/// How many there are of each kind.
pub fn count(findings: &[Finding]) -> String {
    let of = |severity: Severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let words = |count: usize, word: &str| match count {
        1 => format!("1 {word}"),
        count => format!("{count} {word}s"),
    };
    let (errors, warnings, notes) = (of(Severity::Error), of(Severity::Warning), of(Severity::Note));
    [words(errors, "error"), words(warnings, "warning"), words(notes, "note")].join(", ")
}

/// That a model does not pass.
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
