//! Whether a complete output may have its name: what `kvant verify` finds of it without reading all bytes again. The checks
//! are those of [`crate::verify`].

use super::EngineError;
use crate::plan::Plan;
use crate::verify::{Options, Reads, verify};
use kvant_quant::finding::Finding;
use std::path::Path;

/// Verifies an output that is complete but for its name, as [`Output::finish_if`](super::Output::finish_if) asks.
///
/// # Errors
/// [`EngineError::Unfit`] where a check finds an error.
pub fn accept(plan: &Plan, output: &Path) -> Result<(), EngineError> {
    // A file alone has no config.json, and neither has what is made of it.
    accept_but(output, |error| plan.config.is_none() && error.check == "config")
}

/// The same of a GGUF file, which says all of itself.
///
/// # Errors
/// [`EngineError::Unfit`] where a check finds an error.
pub fn accept_file(output: &Path) -> Result<(), EngineError> {
    accept_but(output, |_| false)
}

fn accept_but(output: &Path, is_allowed: impl Fn(&Finding) -> bool) -> Result<(), EngineError> {
    let report = verify(output, &Options { reads: Reads::Scales, ..Options::default() })?;
    let errors: Vec<_> = report.errors().filter(|error| !is_allowed(error)).collect();
    match errors.first() {
        None => Ok(()),
        Some(first) => Err(EngineError::Unfit {
            output: output.to_owned(),
            place: first.place.clone(),
            reason: first.reason.clone(),
            errors: errors.len(),
        }),
    }
}
