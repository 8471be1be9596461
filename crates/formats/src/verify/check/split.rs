//! Tensor parallelism over the usual numbers of devices: what keeps a model from it is worth a note. A number that was asked
//! for is judged by [`super::super::verify`].

use crate::verify::subject::CheckpointView;
use kvant_quant::counts::number;
use kvant_quant::finding::Findings;

/// Numbers of devices that are looked at unasked.
pub(in crate::verify) const WAYS: [usize; 3] = [2, 4, 8];

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    if subject.network.family().is_none() {
        return;
    }
    for ways in WAYS {
        let mut problems = subject.sharding.problems(ways);
        let Some((place, reason)) = problems.next() else { continue };
        let more = match problems.count() {
            0 => String::new(),
            more => format!(", and {}", number(more, "more problem")),
        };
        findings.note(place, format!("over {ways} devices: {reason}{more}"), "");
    }
}
