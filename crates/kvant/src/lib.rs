//! Kvant quantizes deep-learning models: from a checkpoint, a GGUF file or an ONNX graph to a smaller one that loads.
//!
//! [`Job`] is the entry point: a source, a recipe, calibration data, sinks and limits. [`Job::plan`] describes the run, and
//! [`Job::run`] does it. [`Conversion`], [`Evaluation`], [`Verification`], [`Sensitivity`], [`Search`], [`GraphEdit`] and [`inspect()`] are the other things that
//! the `kvant` command does. All of them are owned values that can be sent to another thread; their progress is
//! reported to an [`Events`], and a [`CancelToken`] stops them.
//!
//! # Examples
//!
//! Plan and quantize a checkpoint:
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
//! let Plan::Checkpoint(plan) = job.plan(&mut ())? else { panic!("a checkpoint becomes a checkpoint") };
//! assert_eq!(plan.plan.layers().len(), 28);
//! let report = job.run(&mut (), &CancelToken::new())?;
//! assert!(report.outputs()[0].join("model.safetensors").exists());
//! assert_eq!(report.to_json()["quantized_layers"], 28);
//! # Ok(())
//! # }
//! ```
//!
//! Quantize a graph. This preset needs calibration data, which are random here:
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
//! Quantize with a custom observer, here one that covers four standard deviations, in a checkpoint and in a graph:
//!
//! ```
//! use kvant::{CancelToken, GraphEngine, Job};
//! use kvant_numeric::kernel::Range;
//! use kvant_onnx::runtime::RuntimeChoice;
//! use kvant_quant::observer::{self, Grid, Needs, ObservedValues, Observer, ObserverRow};
//!
//! #[derive(Debug)]
//! struct Deviations(f64);
//!
//! impl Observer for Deviations {
//!     fn spelling(&self) -> String {
//!         format!("deviations{}", self.0)
//!     }
//!
//!     fn needs(&self, _: &dyn Grid) -> Needs {
//!         Needs::MOMENTS
//!     }
//!
//!     fn range(&self, seen: &ObservedValues<'_>, _: &dyn Grid) -> Range {
//!         let (moments, full) = (seen.moments(), seen.range());
//!         let reach = self.0 * moments.deviation();
//!         Range {
//!             min: full.min.max((moments.mean() - reach) as f32),
//!             max: full.max.min((moments.mean() + reach) as f32),
//!         }
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! observer::register(ObserverRow {
//!     name: "deviations",
//!     aliases: &[],
//!     example: "deviations4",
//!     about: "so many standard deviations about the mean",
//!     make: |settings| Some(Box::new(Deviations(settings.parse().ok().filter(|n| *n > 0.0)?))),
//! })?;
//! # let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests");
//! # let directory = tempfile::tempdir()?;
//! # let text = directory.path().join("text.txt");
//! # std::fs::write(&text, "the quick brown fox jumps over the lazy dog ".repeat(40))?;
//! let mut job = Job::new(format!("{root}/models/nano_llama"));
//! job.recipe.scheme = Some("int8:channel+int8:tensor:deviations4!static".to_owned());
//! job.data.files = vec![text];
//! job.data.num_samples = 2;
//! job.data.seq_len = Some(32);
//! job.sinks.output = Some(directory.path().join("int8"));
//! let report = job.run(&mut (), &CancelToken::new())?;
//! assert_eq!(report.to_json()["quantized_layers"], 28);
//!
//! let mut job = Job::new(format!("{root}/golden/onnx/tinycnn.float.onnx"));
//! job.recipe.scheme = Some("A8W8".to_owned());
//! job.recipe.graph.calibration_method = Some("deviations4".parse()?);
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
//! Measure the perplexity of a model:
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
//! Add a checkpoint format: the tensors of a layer, its config.json, and how both are read. It is then a value of
//! `‹format›`, and checkpoints with its `quant_method` can be sources:
//!
//! ```
//! use kvant::{CancelToken, Job};
//! use kvant_container::{Checkpoint, Dtype};
//! use kvant_formats::format::stored::{ModuleReader, ModuleTensors, ModuleWeight, WeightLayout};
//! use kvant_formats::format::{Capabilities, CheckpointFormat, ModelDescription, register};
//! use kvant_formats::import;
//! use kvant_numeric::pack::NibbleOrder;
//! use kvant_quant::scheme::{ScaleType, TensorScheme};
//! use kvant_weights::import_error::ImportError;
//! use kvant_weights::parts::{CannotHold, Content, LayerSpec, Packing, Part, ScaleEncoding};
//! use kvant_weights::weight::Stored;
//! use serde_json::{Value, json};
//!
//! /// Bytes, and a scale for each output channel.
//! #[derive(Debug)]
//! struct Int8Rows;
//!
//! impl CheckpointFormat for Int8Rows {
//!     fn name(&self) -> &'static str {
//!         "int8-rows"
//!     }
//!
//!     fn about(&self) -> &'static str {
//!         "bytes, and a scale for each output channel"
//!     }
//!
//!     fn capabilities(&self) -> Capabilities {
//!         let weights_alone = Capabilities::of_method("int8_rows", &["int8_rows"]);
//!         Capabilities { scale: Some(ScaleType::F32), excluded_fields: &["kept"], ..weights_alone }
//!     }
//!
//!     fn parts(&self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
//!         if layer.scheme.to_string() != "int8:channel:f32" {
//!             return Err(CannotHold::new(format!("int8-rows has no `{}`", layer.scheme), "use int8:channel"));
//!         }
//!         let codes = Content::Codes { packing: Packing::Bytes, transposed: false };
//!         let scales = Content::Scales { encoding: ScaleEncoding::F32, transposed: false };
//!         Ok(vec![
//!             layer.part("codes", Dtype::I8, [layer.rows, layer.columns], codes),
//!             layer.part("steps", Dtype::F32, [layer.rows], scales),
//!         ])
//!     }
//!
//!     fn config(&self, model: &ModelDescription<'_>) -> Result<Value, CannotHold> {
//!         Ok(json!({"quant_method": "int8_rows", "kept": model.exclude}))
//!     }
//!
//!     fn reader(&self, _method: &str, _config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
//!         Ok(Box::new(Int8Rows))
//!     }
//! }
//!
//! impl ModuleReader for Int8Rows {
//!     fn weights(&self, module: &ModuleTensors<'_, '_>) -> Result<Vec<ModuleWeight>, ImportError> {
//!         if module.tensor("codes").is_none() {
//!             return Ok(Vec::new());
//!         }
//!         let scheme: TensorScheme = "int8:channel:f32".parse().map_err(|_| ImportError::invalid(module.name, "no scheme"))?;
//!         let shape = module.matrix_shape("codes")?;
//!         let layer = LayerSpec::weight_only(module.name, shape, scheme, NibbleOrder::default());
//!         let parts = self.parts(&layer).map_err(|error| ImportError::cannot_hold(module.name, &error))?;
//!         Ok(vec![ModuleWeight::of(module, WeightLayout::of_scheme(module.name, scheme, shape, parts)?)])
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/models/nano_llama");
//! # let directory = tempfile::tempdir()?;
//! # let output = directory.path().join("int8");
//! let format = register(Int8Rows)?;
//! assert!(register(Int8Rows).is_err(), "the name is taken");
//!
//! let mut job = Job::new(model);
//! job.recipe.scheme = Some("int8:channel".to_owned());
//! job.sinks.formats = vec![format.into()];
//! job.sinks.output = Some(output.clone());
//! let report = job.run(&mut (), &CancelToken::new())?;
//! assert_eq!(report.to_json()["format"], "int8-rows");
//!
//! let checkpoint = Checkpoint::open(&output)?;
//! assert!(checkpoint.tensor("model.layers.0.mlp.up_proj.codes").is_some());
//! let weights = import::open(&checkpoint)?.into_tensors();
//! let quantized = weights.iter().filter(|weight| matches!(weight.stored, Stored::Packed(_))).count();
//! assert_eq!(quantized, 28);
//! # Ok(())
//! # }
//! ```
//!
//! Register a custom rounding, and select it by name. It runs on checkpoints and on graphs; its name and settings are
//! part of a run's identity, so that an interrupted run resumes only with the same ones:
//!
//! ```
//! use kvant::{CancelToken, Job};
//! use kvant_quant::algorithm::register;
//! use kvant_quant::options::{self, OptionRow, Settings, Values};
//! use kvant_quant::rounding::{LayerError, LayerProblem, Needs, RoundedLayer, Rounding, RoundingRow, nearest};
//! use serde::{Deserialize, Serialize};
//!
//! /// Rounds towards zero what is less than `share` of a step away from it.
//! #[derive(Clone, Debug, Serialize, Deserialize)]
//! struct Sparse {
//!     share: f32,
//! }
//!
//! impl Rounding for Sparse {
//!     fn name(&self) -> &str {
//!         "sparse"
//!     }
//!
//!     fn settings(&self) -> Settings {
//!         options::shown(self)
//!     }
//!
//!     fn needs(&self) -> Needs {
//!         Needs::Nothing
//!     }
//!
//!     fn round(&self, problem: &mut LayerProblem<'_>) -> Result<RoundedLayer, LayerError> {
//!         problem.check_cancelled()?;
//!         let plain = nearest(problem)?;
//!         let codes = problem.weight.iter().zip(plain.affines()).map(|(weight, grid)| {
//!             // Rounding to nearest multiplies by the reciprocal too: a quotient differs near ties.
//!             let steps = weight * (1.0 / grid.scale);
//!             let kept = if steps.abs() < self.share { 0.0 } else { steps.round_ties_even() };
//!             (f64::from(kept) + grid.zero_point).clamp(-8.0, 7.0) as i64
//!         });
//!         Ok(RoundedLayer::new(plain.with_integers(codes.collect())))
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const OPTIONS: &[OptionRow] =
//!     &[OptionRow { name: "share", values: Values::SHARE, about: "steps that are rounded to zero" }];
//! register(RoundingRow::of(Sparse { share: 0.5 }, OPTIONS, "rounds small weights to zero"))?;
//!
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/models/nano_llama");
//! # let directory = tempfile::tempdir()?;
//! let quantize = |algorithm: &str| -> Result<Vec<u8>, Box<dyn std::error::Error>> {
//!     let mut job = Job::new(model);
//!     job.recipe.scheme = Some("int4_wo_128".to_owned());
//!     job.recipe.algorithm = vec![algorithm.to_owned()];
//!     let output = directory.path().join(algorithm.replace([':', '='], "_"));
//!     job.sinks.output = Some(output.clone());
//!     job.run(&mut (), &CancelToken::new())?;
//!     Ok(std::fs::read(output.join("model.safetensors"))?)
//! };
//! let nearest = quantize("rtn")?;
//! // Half of a step is where rounding to nearest changes from zero to one.
//! assert!(quantize("sparse")? == nearest);
//! assert!(quantize("sparse:share=0.9")? != nearest);
//! assert!(quantize("sparse:share=2").is_err());
//! # Ok(())
//! # }
//! ```
//!
//! Register a transform of your own, which finds scales for layers and what they read, on checkpoints and on graphs. It may try
//! scales: the loss is that of what the layers put out, quantized:
//!
//! ```
//! use kvant::{CancelToken, Job, Report};
//! use kvant_quant::algorithm::register;
//! use kvant_quant::options::{self, OptionRow, Settings, Values};
//! use kvant_quant::transform::{Needs, PairError, PairProblem, PairScales, Transform, TransformRow};
//! use serde::{Deserialize, Serialize};
//!
//! /// Scales by the root of the mean input, as far as `share` says, where that loses less than no scales.
//! #[derive(Clone, Debug, Serialize, Deserialize)]
//! struct Roots {
//!     share: f32,
//! }
//!
//! impl Transform for Roots {
//!     fn name(&self) -> &str {
//!         "roots"
//!     }
//!
//!     fn settings(&self) -> Settings {
//!         options::shown(self)
//!     }
//!
//!     fn needs(&self) -> Needs {
//!         Needs::MeansRunsAndSamples
//!     }
//!
//!     fn trials(&self) -> u32 {
//!         2
//!     }
//!
//!     fn find(&self, pair: &mut dyn PairProblem) -> Result<PairScales, PairError> {
//!         let means = pair.inputs().abs_mean();
//!         let scales: Vec<f32> = means.iter().map(|mean| mean.max(1e-4).powf(self.share / 2.0)).collect();
//!         let before = pair.loss(&vec![1.0; scales.len()], self.measure())?;
//!         let after = pair.loss(&scales, self.measure())?;
//!         if after >= before {
//!             return Err(PairError::Unscaled("roots lose more than no scales".to_owned()));
//!         }
//!         Ok(PairScales { loss_before: Some(before), loss_after: Some(after), ..PairScales::new(scales) })
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const OPTIONS: &[OptionRow] =
//!     &[OptionRow { name: "share", values: Values::SHARE, about: "how much of the root is taken" }];
//! register(TransformRow::of(Roots { share: 1.0 }, OPTIONS, "scales by the root of the mean input"))?;
//!
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/models/nano_llama");
//! # let directory = tempfile::tempdir()?;
//! # let text = directory.path().join("text.txt");
//! # std::fs::write(&text, "the quick brown fox jumps over the lazy dog ".repeat(40))?;
//! let quantize = |algorithms: &[&str]| -> Result<Vec<u8>, Box<dyn std::error::Error>> {
//!     let mut job = Job::new(model);
//!     job.recipe.scheme = Some("int4_wo_128".to_owned());
//!     job.recipe.algorithm = algorithms.iter().map(|&name| name.to_owned()).collect();
//!     job.data.files = vec![text.clone()];
//!     job.data.num_samples = 8;
//!     job.data.seq_len = Some(32);
//!     let output = directory.path().join(algorithms.concat().replace([':', '='], "_"));
//!     job.sinks.output = Some(output.clone());
//!     job.run(&mut (), &CancelToken::new())?;
//!     Ok(std::fs::read(output.join("model.safetensors"))?)
//! };
//! let unscaled = quantize(&["gptq"])?;
//! assert!(quantize(&["roots", "gptq"])? != unscaled);
//! // No scale is found without a share.
//! assert!(quantize(&["roots:share=0", "gptq"])? == unscaled);
//! assert!(quantize(&["gptq", "roots"]).is_err(), "transforms come before roundings");
//!
//! # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/onnx/tinytransformer.float.onnx");
//! let mut job = Job::new(model);
//! job.recipe.scheme = Some("A8W8".to_owned());
//! job.recipe.algorithm = vec!["roots".to_owned()];
//! job.data.files = vec!["random".into()];
//! # job.limits.engine.choice = kvant_onnx::runtime::RuntimeChoice::Rten;
//! job.sinks.output = Some(directory.path().join("roots.onnx"));
//! let Report::Graph(report) = job.run(&mut (), &CancelToken::new())? else { return Err("a graph was given".into()) };
//! let found = &report.graphs[0].report;
//! assert!(found.scaled_inputs.len() + found.not_scaled.len() > 0);
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! An [`Error`] has a kind, a message and a hint. Messages name settings in single angle quotes, such as `‹calib›`, and [`spelled`]
//! writes them as the front end does.

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/library.md")]
struct LibraryGuide;

mod calibration;
mod cancel;
mod card;
pub mod catalog;
mod checkpoint;
mod convert;
mod delivery;
mod ending;
mod error;
mod evaluate;
mod evaluated_data;
mod events;
mod family;
mod findings;
mod generation;
mod gguf;
mod images;
pub mod inspect;
mod job;
pub mod json;
pub mod loading;
mod memory;
mod onnx;
pub mod page;
mod paths;
mod picture;
mod pipeline;
mod quality;
mod quality_level;
mod remote;
mod report;
mod resolve;
mod run;
mod search;
mod self_samples;
mod sensitivity;
mod settings;
mod sounds;
pub mod summary;
pub mod tensor;
pub mod text;
mod verify;

pub use cancel::CancelToken;
pub use checkpoint::CheckpointConversion;
pub use checkpoint::fate::{Action, TensorSummary};
pub use checkpoint::outputs::{Delivered, Output};
pub use checkpoint::plan::{CheckpointPlan, Cost, PlannedOutput};
pub use checkpoint::quantize::CheckpointReport;
pub use checkpoint::worker::{PartReport, parts};
pub use convert::ConversionReport;
pub use error::{Error, ErrorKind};
pub use evaluate::{
    ChangedTexts, ChoicesComparison, ChoicesReport, EncoderReport, Evaluation, EvaluationReport, ModelResult,
    ModelSize, ModelsReport, TextReport, TextRun,
};
pub use evaluated_data::EvaluatedData;
pub use events::{Event, Events, Resumption, Stage, Unit};
pub use family::{add_family, suggest_family};
pub use generation::language_model::{GenerateUntil, LanguageModel, ModelFacts, TokenPair};
pub use generation::report::{GeneratedPrompt, GeneratedText, GenerationReport, Speed};
pub use generation::{Generation, Prompt};
pub use gguf::quantize::GgufReport;
pub use gguf::{GgufConversion, GgufFilePlan};
pub use inspect::{GraphListing, Inspection, inspect};
pub use job::{
    Commit, Conversion, ConvertTo, Data, Format, GivenStatistics, GraphEngine, GraphRecipe, Job, Limits, Metric,
    MixTarget, Precision, QualityLimits, Recipe, Search, SearchMethod, Sensitivity, Sharing, Sinks, Source, SourceKind,
    Verification,
};
pub use kvant_container::Remedy;
pub use kvant_data::calibration::{ChatTemplate, Rendered};
pub use kvant_data::tokenizer::ModelTokenizer;
pub use kvant_forward::evaluation::Likelihood;
pub use kvant_forward::generation::{Finish, Sampling};
pub use kvant_onnx::runtime::look_in_packages;
pub use memory::PeakMemory;
pub use onnx::decoder::{Graph, GraphConversion, MadeGraph};
pub use onnx::measure::{Measured, Quality, SampleOrigin};
pub use onnx::opening::{Opening, open as open_graph};
pub use onnx::plan::GraphPlan;
pub use onnx::quantize::{GraphReport, QuantizedGraph};
pub use onnx::text::TextQuality;
pub use onnx::tool::{GraphEdit, GraphEditReport, GraphTool};
pub use onnx::verify::GraphVerdict;
pub use picture::{MOST_NODES, write_picture};
pub use pipeline::{PipelinePlan, PipelineReport, PlannedComponent};
pub use report::Report;
pub use run::Plan;
pub use search::{ComparedMix, GroupOption, GroupSensitivity, MeasuredMix, SearchReport};
pub use sensitivity::SensitivityReport;
pub use settings::{settings, spelled};
pub use verify::{CheckpointVerdict, PipelineVerdict, VerificationReport};
