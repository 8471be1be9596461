//! Lists of groups (activation order): one entry an input channel, each a group that there is.

use super::DAMAGED;
use crate::format::stored::scalars::integers;
use crate::verify::subject::CheckpointView;
use kvant_quant::finding::Findings;

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    for weight in &subject.survey.weights {
        let Some((view, stated)) = weight.groups.and_then(|view| Some((view, integers(view).ok()?))) else { continue };
        let count = weight.groups_across() as i64;
        let out = stated.iter().filter(|group| **group < 0 || **group >= count).count();
        if stated.len() != weight.columns {
            let reason = format!("has {} entries for {} input channels", stated.len(), weight.columns);
            findings.error(view.name(), reason, DAMAGED);
        }
        if out > 0 {
            findings.error(view.name(), format!("{out} entries are none of the {count} groups"), DAMAGED);
        }
    }
}
