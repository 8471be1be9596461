//! Versions of operators and of the file against what ONNX Runtime takes. Measured with 1.31.1, whose `ValidateOpsetForDomain` and
//! `Model` refuse the next ones.

use kvant_container::onnx::ModelProto;
use kvant_quant::finding::Findings;

/// Domains with the newest opset of theirs that is taken.
const OPSETS: [(&str, i64); 4] = [("", 26), ("ai.onnx", 26), ("ai.onnx.ml", 5), ("com.microsoft", 1)];
/// The newest version of the file format.
const IR_VERSION: i64 = 13;

pub(super) fn run(model: &ModelProto, findings: &mut Findings) {
    const HINT: &str = "write the model for an older version";
    for set in &model.opset_import {
        let newest = OPSETS.iter().find(|(domain, _)| *domain == set.domain()).map(|(_, newest)| *newest);
        if let Some(newest) = newest.filter(|newest| set.version() > *newest) {
            let name = if set.domain().is_empty() { "ai.onnx" } else { set.domain() };
            let reason = format!("is opset {} of {name}; ONNX Runtime 1.31 takes {newest} at most", set.version());
            findings.warning("opset_import", reason, HINT);
        }
    }
    if model.ir_version() > IR_VERSION {
        let reason = format!("is {}; ONNX Runtime 1.31 takes {IR_VERSION} at most", model.ir_version());
        findings.warning("ir_version", reason, HINT);
    }
}
