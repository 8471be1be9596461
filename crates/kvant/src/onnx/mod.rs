//! Quantizing and checking ONNX graphs, and writing decoders as graphs.

pub mod accuracy;
pub mod data;
pub mod decoder;
mod fingerprint;
pub mod measure;
pub mod opening;
mod outputs;
pub mod plan;
pub(crate) mod quality_level;
pub mod quantize;
pub mod ranges;
pub mod recipe;
pub mod sensitivity;
mod sequences;
#[cfg(test)]
mod source_tests;
mod staged;
pub mod text;
pub mod tool;
pub mod verify;

pub use decoder::GraphConversion;
pub use plan::GraphPlan;

use crate::delivery::claim;
use crate::error::{Error, ErrorKind};
use crate::job::{GraphEngine, Sinks};
use kvant_container::onnx::ModelProto;
use kvant_container::unfinished::Claim;
use kvant_onnx::runtime::RuntimeChoice;
use std::path::Path;

/// Takes final names back from files of an interrupted run, which had only given names to some of them.
///
/// # Errors
/// Another run's work; the system's.
pub fn recover(sinks: &Sinks) -> Result<(), Error> {
    match sinks.output.as_deref().filter(|output| Claim::is_half_placed(output)) {
        Some(output) => claim(output, &sinks.settings, sinks.commit).map(drop),
        None => Ok(()),
    }
}

/// Reads a graph and its external data.
pub fn read(path: &Path) -> Result<ModelProto, Error> {
    Ok(kvant_container::onnx::read(path)?)
}

/// Refuses a library of an engine that is not requested.
pub fn refuse_idle_library(engine: &GraphEngine) -> Result<(), Error> {
    if engine.choice != RuntimeChoice::Rten || engine.library.is_none() {
        return Ok(());
    }
    let error = Error::new(ErrorKind::Usage, "‹runtime-library› and ‹runtime› rten exclude each other");
    Err(error.with_hint(Some("leave one of them out: the library is that of ONNX Runtime".to_owned())))
}
