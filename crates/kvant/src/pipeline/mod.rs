//! Diffusers pipelines: the components that are quantized are checkpoints of their own, made one after the other, and all files of the
//! pipeline go into one output.

mod choice;
pub mod plan;
pub mod quantize;

pub use plan::{PipelinePlan, PlannedComponent};
pub use quantize::PipelineReport;

use crate::text::shown;
use kvant_container::Pipeline;

/// Why diffusers does not load a pipeline, whatever its weights are: a sentence for each file or component.
pub(crate) fn flaws(pipeline: &Pipeline) -> Vec<String> {
    let empty = pipeline.is_empty.then(|| "model_index.json names no component".to_owned());
    let missing = pipeline.missing.iter().map(|(name, lack)| format!("model_index.json names `{name}`, and {lack}"));
    let damaged = pipeline.damaged.iter().map(|(file, problem)| format!("{}: {problem}", shown(file)));
    empty.into_iter().chain(missing).chain(damaged).collect()
}
