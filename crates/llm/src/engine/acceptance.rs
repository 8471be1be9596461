//! Whether a complete output may have its name: what `kvant verify` finds of it without reading all bytes again. The checks
//! are those of [`crate::verify`].

use super::EngineError;
use crate::plan::Plan;
use crate::verify::{Options, Reads, verify};
use std::path::Path;

/// Verifies an output that is complete but for its name, as [`Output::finish_if`](super::Output::finish_if) asks.
///
/// # Errors
/// [`EngineError::Unfit`] where a check finds an error.
pub fn accept(plan: &Plan, output: &Path) -> Result<(), EngineError> {
    let report = verify(output, &Options { reads: Reads::Scales, ..Options::default() })?;
    // A file alone has no config.json, and neither has what is made of it.
    let errors: Vec<_> = report.errors().filter(|error| plan.config.is_some() || error.check != "config").collect();
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
