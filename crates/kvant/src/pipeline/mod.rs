//! Diffusers pipelines: the components that are quantized are checkpoints of their own, made one after the other, and all files of the
//! pipeline go into one output.

mod choice;
pub mod plan;
pub mod quantize;

pub use plan::{PipelinePlan, PlannedComponent};
pub use quantize::PipelineReport;
