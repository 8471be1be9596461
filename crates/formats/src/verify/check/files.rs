//! Index, shards and what lies beside them.

use crate::verify::subject::CheckpointView;
use kvant_container::shown;
use kvant_container::{Diagnostic, Error, ErrorKind, LeftOutReason};
use kvant_quant::finding::{Finding, Findings, Severity};

/// Files that make no checkpoint, as a finding. Refusals of the system, and what is no checkpoint at all, are none.
///
/// # Errors
/// What is no finding.
pub(in crate::verify) fn opening(error: Error) -> Result<Finding, Error> {
    let (file, reason) = match &error {
        // A type that is not known is the header's fault too.
        Error::Header { file, problem } => (Some(file), problem.to_string()),
        error if error.kind() != ErrorKind::Invalid => (None, String::new()),
        Error::Checkpoint { path, problem } => (Some(path), problem.to_string()),
        Error::Json { file, message } => (Some(file), message.clone()),
        _ => (None, String::new()),
    };
    match file {
        Some(file) => {
            let (place, hint) = (shown(file), error.hint());
            Ok(Finding { check: "files", severity: Severity::Error, place, reason, hint })
        }
        None => Err(error),
    }
}

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    let checkpoint = subject.checkpoint;
    for name in checkpoint.unindexed() {
        let hint = "add it to model.safetensors.index.json, or take it out of the shard";
        findings.warning(name, "is in a shard, but not in the index: loaders that follow the index miss it", hint);
    }
    let bytes: u64 = checkpoint.tensors().map(|tensor| tensor.byte_len()).sum();
    if let Some(stated) = total_size(subject).filter(|stated| *stated != bytes) {
        let reason = format!("metadata.total_size is {stated}, the tensors have {bytes} bytes");
        findings.note("model.safetensors.index.json", reason, "");
    }
    for file in checkpoint.left_out_files().unwrap_or_default() {
        if file.reason == LeftOutReason::OtherSafetensors {
            let hint = "move it away: loaders that take all files read its tensors too";
            findings.warning(shown(&file.name), "is not part of the checkpoint", hint);
        }
    }
}

fn total_size(subject: &CheckpointView<'_>) -> Option<u64> {
    let index = subject.checkpoint.json("model.safetensors.index.json").ok()??;
    // transformers writes a whole number, others have written floats.
    let stated = index.get("metadata")?.get("total_size")?;
    stated.as_u64().or_else(|| stated.as_f64().map(|size| size as u64))
}
