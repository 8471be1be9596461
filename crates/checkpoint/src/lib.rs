//! Quantize Hugging Face checkpoints: planning and execution.
//!
//! The flow, roughly in the order of module dependencies, which are acyclic:
//!
//! * [`input_statistics`]: statistics of layers' inputs in a file,
//! * [`recipe`]: the user's request,
//! * [`plan`]: the action on every tensor; invalid requests are refused here,
//! * [`calibration`]: statistics of data that are needed before execution, if any,
//! * [`engine`]: the doing, in parallel, in bounded memory, resumable; [`blockwise`]: one decoder block after the other, with
//!   [`folding`] of the scales that transforms find,
//! * [`learned_rotation`]: steps that adapt a rotation to the rounded model,
//! * [`conversion`]: from one format to another,
//! * [`gguf`]: the same steps for a GGUF file, with its own plan,
//! * [`onnx`]: a decoder as an ONNX graph,
//! * [`sensitivity`]: what layers may become in a mix of schemes, and how much each costs,
//! * [`weight_histograms`], [`activation_histograms`]: the weights of layers before and after, and what passes them, for reports.
//!
//! The layers below are crates of their own: `kvant_model` (a checkpoint's headers and config.json, seen as a model),
//! `kvant_weights`, `kvant_formats` (checkpoint formats, what loaders accept, verification), `kvant_gguf` (GGUF files as sources),
//! `kvant_data` and `kvant_forward`.
//!
//! ```
//! use kvant_container::{Checkpoint, Durability};
//! use kvant_checkpoint::engine::{self, Output, Silent, Start};
//! use kvant_checkpoint::plan::Plan;
//! use kvant_checkpoint::recipe::{Recipe, Settings};
//! use std::path::Path;
//! use std::sync::atomic::AtomicBool;
//!
//! # let dir = tempfile::tempdir()?;
//! let source = Path::new("../../tests/models/nano_llama");
//! let target = dir.path().join("nano_llama-int4");
//! let settings = Settings { scheme: Some("int4_wo_128".to_owned()), ..Settings::default() };
//!
//! let checkpoint = Checkpoint::open(source)?;
//! let plan = Plan::new(&checkpoint, Recipe::resolve(&settings, &Settings::default())?)?.without_calibration()?;
//! if let Start::Working(output) = Output::begin(&plan, source, &target, false)? {
//!     engine::run(&plan, &checkpoint, &output, 2, &AtomicBool::new(false), &Silent)?;
//!     output.finish(&plan, &checkpoint, Durability::Disk)?;
//! }
//!
//! assert!(Checkpoint::open(&target)?.tensor("model.layers.0.mlp.up_proj.weight_scale").is_some());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod activation_histograms;
pub mod blockwise;
pub mod byte_size;
pub mod calibration;
pub mod conversion;
pub mod engine;
pub mod finite;
pub mod folding;
pub mod gguf;
pub mod input_statistics;
pub mod learned_rotation;
pub mod onnx;
pub mod plan;
pub mod recipe;
pub mod sensitivity;
pub mod weight_histograms;
