//! Decides whether a complete output is committed: runs `kvant verify` on it without reading codes again. The checks
//! are those of [`kvant_formats::verify`].

use super::{CompletePlan, EngineError};
use kvant_container::Checkpoint;
use kvant_formats::verify::{Options, Reads, inherited, verify};
use kvant_quant::finding::{Finding, Severity};
use std::path::Path;

/// Whether a complete output is verified before it is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// It is verified, and keeps its preliminary name where it does not pass.
    Run,
    /// Like `Run`, but no loader has to support it: an intermediate checkpoint.
    Codes,
    /// It gets its name as it is.
    Skip,
}

impl Verify {
    /// Verifies an output if requested, and returns its warnings.
    ///
    /// # Errors
    /// As [`CompletePlan::accept`].
    pub(super) fn of(self, plan: &dyn CompletePlan, output: &Path) -> Result<Vec<Finding>, EngineError> {
        match self {
            Verify::Run => plan.accept(output),
            Verify::Codes => accept_by(output, Options { needs_loader: false, ..Options::default() }),
            Verify::Skip => Ok(Vec::new()),
        }
    }
}

/// Verifies an output that is complete but for its name, and returns the warnings.
///
/// # Errors
/// [`EngineError::VerificationFailed`] where a check finds an error.
pub(crate) fn accept(output: &Path) -> Result<Vec<Finding>, EngineError> {
    accept_by(output, Options::default())
}

fn accept_by(output: &Path, options: Options) -> Result<Vec<Finding>, EngineError> {
    let report = verify(output, &Options { reads: Reads::Floats, ..options })?;
    refuse_errors(output, &report.findings)?;
    Ok(report.findings.into_iter().filter(|finding| finding.severity == Severity::Warning).collect())
}

/// Refuses an output for the errors among findings.
///
/// # Errors
/// [`EngineError::VerificationFailed`] with the first of them.
pub(crate) fn refuse_errors(output: &Path, findings: &[Finding]) -> Result<(), EngineError> {
    let errors: Vec<_> = findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
    match errors.first() {
        None => Ok(()),
        Some(first) => Err(EngineError::VerificationFailed {
            output: output.to_owned(),
            place: first.place.clone(),
            reason: first.reason.clone(),
            errors: errors.len(),
        }),
    }
}

/// Refuses a source whose outputs would not pass verification, whatever becomes of its weights.
///
/// # Errors
/// [`EngineError::PreflightFailed`] with the first of the errors.
pub fn refuse_inherited(source: &Checkpoint) -> Result<(), EngineError> {
    refuse_foreseen(&inherited(source))
}

/// Refuses outputs that would not pass verification.
///
/// # Errors
/// [`EngineError::PreflightFailed`] with the first of the errors.
pub(crate) fn refuse_foreseen(errors: &[Finding]) -> Result<(), EngineError> {
    match errors.first() {
        None => Ok(()),
        Some(first) => Err(EngineError::PreflightFailed {
            place: first.place.clone(),
            reason: first.reason.clone(),
            way_out: first.hint.clone(),
            errors: errors.len(),
        }),
    }
}
