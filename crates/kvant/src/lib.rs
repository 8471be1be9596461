//! Kvant quantizes deep-learning models: from a checkpoint, a GGUF file or an ONNX graph to a smaller one that loads.
//!
//! [`Job`] is the entry point: a source, a recipe, calibration data, sinks and limits. [`Job::plan`] says what would be done, and
//! [`Job::run`] does it. [`Conversion`], [`Evaluation`], [`Verification`], [`Sensitivity`] and [`inspect()`] are the other things that
//! the `kvant` command does. All of them are owned values that can be sent to another thread; what happens while they run is
//! received by an [`Events`], and a [`CancelToken`] stops them.
//!
//! # Examples
//!
//! Quantize a checkpoint, after looking at what would become of it:
//!
//! ```
//! use kvant::{CancelToken, Job, Plan};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/models/nano_llama");
//! # let directory = tempfile::tempdir()?;
//! let mut job = Job::new(model);
//! job.recipe.scheme = Some("int4_wo_128".to_owned());
//! job.sinks.output = Some(directory.path().join("int4"));
//! let Plan::Checkpoint(plan) = job.plan(&mut ())? else { panic!("a checkpoint is made of a checkpoint") };
//! assert_eq!(plan.plan.layers.len(), 28);
//! let report = job.run(&mut (), &CancelToken::new())?;
//! assert!(report.outputs()[0].join("model.safetensors").exists());
//! assert_eq!(report.to_json()["quantized_layers"], 28);
//! # Ok(())
//! # }
//! ```
//!
//! Quantize a graph. This preset needs calibration data, which are made up here:
//!
//! ```
//! use kvant::{CancelToken, GraphEngine, Job};
//! use kvant_onnx::runtime::RuntimeChoice;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/onnx/tinycnn.float.onnx");
//! # let directory = tempfile::tempdir()?;
//! let mut job = Job::new(model);
//! job.recipe.scheme = Some("A8W8".to_owned());
//! job.data.files = vec!["random".into()];
//! job.data.num_samples = 4;
//! job.limits.engine = GraphEngine { choice: RuntimeChoice::Rten, ..GraphEngine::default() };
//! job.sinks.output = Some(directory.path().join("tinycnn.int8.onnx"));
//! let report = job.run(&mut (), &CancelToken::new())?;
//! assert_eq!(report.to_json()["format"], "onnx");
//! # Ok(())
//! # }
//! ```
//!
//! Measure the perplexity of a model, and how far a quantized model is from it:
//!
//! ```
//! use kvant::{CancelToken, Evaluation, EvaluationReport, Source};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/models/nano_llama");
//! # let directory = tempfile::tempdir()?;
//! # let text = directory.path().join("text.txt");
//! # std::fs::write(&text, "the quick brown fox jumps over the lazy dog ".repeat(20))?;
//! let mut evaluation = Evaluation::new(Source::new(model), &text);
//! evaluation.seq_len = Some(32);
//! let EvaluationReport::Text(report) = evaluation.run(&mut (), &CancelToken::new())? else { panic!("a text was given") };
//! assert!(report.found.perplexity > 1.0);
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! An [`Error`] has a kind, a message and a hint. Messages name settings in single angle quotes, such as `‹calib›`, and [`spelled`]
//! writes them as the front end does.

mod calibration;
mod cancel;
pub mod catalog;
mod checkpoint;
mod convert;
mod delivery;
mod error;
mod evaluate;
mod events;
mod findings;
mod gguf;
pub mod inspect;
mod job;
pub mod json;
pub mod loading;
mod memory;
mod onnx;
mod paths;
mod quality;
mod report;
mod resolve;
mod run;
mod sensitivity;
mod settings;
pub mod text;
mod verify;

pub use cancel::CancelToken;
pub use checkpoint::CheckpointConversion;
pub use checkpoint::convert::{said, worst};
pub use checkpoint::fate::{Action, Fate};
pub use checkpoint::outputs::{Delivered, Output};
pub use checkpoint::plan::{CheckpointPlan, Cost};
pub use checkpoint::quantize::CheckpointReport;
pub use convert::ConversionReport;
pub use error::{Error, ErrorKind};
pub use evaluate::{Evaluation, EvaluationReport, TextReport};
pub use events::{Event, Events, Resumption, Stage, Unit};
pub use gguf::quantize::GgufReport;
pub use gguf::{GgufConversion, GgufFilePlan};
pub use inspect::{Inspection, inspect};
pub use job::{
    Commit, Conversion, ConvertTo, Data, Format, GraphEngine, GraphRecipe, Job, Limits, Precision, QualityLimits,
    Recipe, Sensitivity, Sinks, Source, SourceKind, Verification,
};
pub use onnx::decoder::{Graph, GraphConversion, MadeGraph};
pub use onnx::measure::{Measured, Origin, Quality};
pub use onnx::opening::{Opening, open as open_graph};
pub use onnx::plan::GraphPlan;
pub use onnx::quantize::GraphReport;
pub use onnx::verify::GraphVerdict;
pub use report::Report;
pub use run::Plan;
pub use sensitivity::SensitivityReport;
pub use settings::{settings, spelled};
pub use verify::{CheckpointVerdict, VerificationReport, in_words};
