//! Code that configurations name: that the files are there. What stands in them is not looked at.

use crate::verify::subject::CheckpointView;
use kvant_quant::finding::Findings;

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    for missing in subject.checkpoint.custom_code().missing {
        let reason =
            format!("{} names it, and it is missing: loaders that run the model's own code fail", missing.named_by);
        let hint = "copy it from the original model, or take it out of the configuration's auto_map";
        findings.error(missing.file, reason, hint);
    }
}
