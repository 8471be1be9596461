//! Diffusers pipelines: the components that are quantized are checkpoints of their own, made one after the other, and all files of the
//! pipeline go into one output.

mod choice;
pub mod plan;
pub mod quantize;

pub use plan::{PipelinePlan, PlannedComponent};
pub use quantize::PipelineReport;

use crate::text::shown;
use std::path::Path;

/// The first component that lacks files, in words.
pub(crate) fn lack(pipeline: &Path, missing: &[(String, &'static str)]) -> Option<String> {
    let (name, lack) = missing.first()?;
    Some(format!("{}: model_index.json names `{name}`, and {lack}", shown(pipeline)))
}
