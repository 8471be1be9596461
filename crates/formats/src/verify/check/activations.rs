//! Static scales of inputs and outputs: there where config.json promises them.

use super::DAMAGED;
use super::layout::said;
use crate::import::survey::ProblemKind as About;
use crate::verify::subject::CheckpointView;
use kvant_quant::finding::Findings;

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    for problem in subject.survey.problems.iter().filter(|problem| problem.subject == About::Activations) {
        let (place, reason) = said(&problem.error, &problem.module);
        findings.error(place, reason, DAMAGED);
    }
}
