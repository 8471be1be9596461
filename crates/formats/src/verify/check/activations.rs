//! Static scales of inputs and outputs: there where config.json promises them.

use super::DAMAGED;
use super::layout::said;
use crate::import::survey::Subject as About;
use crate::verify::subject::Subject;
use kvant_quant::finding::Findings;

pub(super) fn run(subject: &Subject<'_>, findings: &mut Findings) {
    for problem in subject.survey.problems.iter().filter(|problem| problem.subject == About::Activations) {
        let (place, reason) = said(&problem.error, &problem.module);
        findings.error(place, reason, DAMAGED);
    }
}
