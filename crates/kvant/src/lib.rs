//! Kvant quantizes deep-learning models: from a checkpoint, a GGUF file or an ONNX graph to a smaller one that loads.
//!
//! [`Job`] is the entry point: a source, a recipe, calibration data, sinks and limits. [`Job::plan`] says what would be done, and
//! [`Job::run`] does it. [`Conversion`], [`Evaluation`], [`Verification`] and [`Sensitivity`] are the other things that the `kvant`
//! command does.

mod cancel;
pub mod catalog;
mod checkpoint;
mod convert;
mod delivery;
mod error;
mod evaluate;
mod events;
mod gguf;
pub mod inspect;
mod job;
pub mod json;
pub mod loading;
mod memory;
mod onnx;
mod outputs;
mod quality;
mod report;
mod sensitivity;
pub mod text;
mod verify;

pub use cancel::CancelToken;
pub use checkpoint::CheckpointConversion;
pub use checkpoint::fate::{Action, Fate};
pub use checkpoint::plan::{CheckpointPlan, Cost};
pub use checkpoint::quantize::CheckpointReport;
pub use convert::{Conversion, ConversionReport, ConvertTo, said, worst};
pub use error::{Error, ErrorKind};
pub use evaluate::{Evaluation, EvaluationReport, TextReport};
pub use events::{Event, Events, Resumption, Stage, Unit};
pub use gguf::quantize::GgufReport;
pub use gguf::{GgufConversion, GgufFilePlan};
pub use inspect::{Inspection, inspect};
pub use job::{
    Commit, Data, Format, GraphEngine, GraphRecipe, Job, Limits, Plan, Precision, QualityLimits, Recipe, Sinks, Source,
    SourceKind,
};
pub use onnx::decoder::{Graph, GraphConversion, MadeGraph};
pub use onnx::measure::{Measured, Origin, Quality};
pub use onnx::opening::{Opening, open as open_graph};
pub use onnx::plan::GraphPlan;
pub use onnx::quantize::GraphReport;
pub use onnx::verify::GraphVerdict;
pub use outputs::{Delivered, Output};
pub use report::Report;
pub use sensitivity::{Sensitivity, SensitivityReport};
pub use verify::{CheckpointVerdict, Verification, VerificationReport, in_words};

/// The first setting that was given, of several with whether they were.
fn first_given(settings: &[(bool, &'static str)]) -> Option<&'static str> {
    settings.iter().find(|(given, _)| *given).map(|(_, setting)| *setting)
}
