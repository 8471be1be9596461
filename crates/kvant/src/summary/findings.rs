//! Findings of checks as displayed: similar ones together, the worst first.

use super::pattern;
use crate::text::{Align, Table};
use kvant_quant::finding::{Finding, Severity};

/// All findings; those that differ only in the indices of their places share a line, unless `all` are requested.
pub fn table(findings: &[Finding], all: bool) -> Table {
    let titles = ["", "check", "where", "what", "remedy"].map(|title| (title, Align::Left));
    let mut table = Table::new(&titles);
    let row = |table: &mut Table, finding: &Finding, place: &str| {
        let hint = finding.hint.as_deref().unwrap_or_default();
        table.push([finding.severity.to_string().as_str(), finding.check, place, &finding.reason, hint]);
    };
    if all {
        findings.iter().for_each(|finding| row(&mut table, finding, &finding.place));
        return table;
    }
    let masked = |finding: &Finding| Finding {
        place: String::new(),
        reason: without_numbers(&finding.reason),
        ..finding.clone()
    };
    let item = |finding: &Finding| (finding.place.clone(), masked(finding), 1);
    for group in pattern::group(findings.iter().map(item)) {
        let Some(first) = group.members.first().map(|member| &findings[*member]) else { continue };
        let reason = match group.members.iter().all(|member| findings[*member].reason == first.reason) {
            true => first.reason.clone(),
            false => format!("{} (so in the first of {}; ‹all› lists each)", first.reason, group.count),
        };
        row(&mut table, &Finding { reason, ..first.clone() }, &group.to_string());
    }
    table
}

/// A reason without the numbers in which similar findings differ: indices of blocks, sizes and scales, but not digits of
/// words such as `int4`.
fn without_numbers(reason: &str) -> String {
    let mut masked = String::new();
    let mut before = ' ';
    let mut chars = reason.chars().peekable();
    while let Some(c) = chars.next() {
        if !c.is_ascii_digit() || before.is_alphanumeric() || before == '_' {
            masked.push(c);
            before = c;
            continue;
        }
        masked.push('#');
        let mut last = c;
        while let Some(next) = chars.next_if(|next| continues_number(last, *next)) {
            last = next;
        }
        before = '#';
    }
    masked
}

/// Returns whether a character belongs to the number that stands before it: `0.25`, `1e-5`.
fn continues_number(last: char, next: char) -> bool {
    let is_inside = last.is_ascii_digit() && matches!(next, '.' | 'e');
    next.is_ascii_digit() || is_inside || (last == 'e' && next == '-')
}

/// The number of each kind.
pub fn count(findings: &[Finding]) -> String {
    let of = |severity: Severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let words = |count: usize, word: &str| match count {
        1 => format!("1 {word}"),
        count => format!("{count} {word}s"),
    };
    let (errors, warnings, notes) = (of(Severity::Error), of(Severity::Warning), of(Severity::Note));
    [words(errors, "error"), words(warnings, "warning"), words(notes, "note")].join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_findings_of_all_blocks_form_one_row() {
        let finding = |block: usize| Finding {
            check: "fused-scales",
            severity: Severity::Note,
            place: format!("model.layers.{block}.self_attn.k_proj.weight_scale"),
            reason: format!(
                "the scale of the tensor is 0.0{block}, that of `model.layers.{block}.self_attn.q_proj` is 0.1{block}"
            ),
            hint: None,
        };
        let findings: Vec<Finding> = (0..32).map(finding).collect();
        let text = |all: bool| table(&findings, all).render(usize::MAX, &str::to_owned);
        assert_eq!((text(false).lines().count(), text(true).lines().count()), (2, 33));
        assert!(text(false).contains("model.layers.{0..31}.self_attn.k_proj"), "{}", text(false));
        assert!(text(false).contains("so in the first of 32"), "{}", text(false));
    }

    #[test]
    fn digits_within_words_are_kept() {
        assert_eq!(
            without_numbers("int4 in `model.layers.10.q` is 1.5e-3, 2 devices. 3"),
            "int4 in `model.layers.#q` is #, # devices. #"
        );
    }
}
