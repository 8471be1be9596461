//! Quantizing and checking ONNX graphs, and writing decoders as graphs.

pub mod data;
pub mod decoder;
pub mod measure;
pub mod opening;
pub mod plan;
pub mod quantize;
pub mod recipe;
pub mod sensitivity;
mod staged;
pub mod verify;

pub use decoder::GraphConversion;
pub use plan::GraphPlan;

use crate::error::{Error, ErrorKind};
use crate::job::GraphEngine;
use kvant_container::onnx::ModelProto;
use kvant_onnx::runtime::RuntimeChoice;
use std::path::Path;

/// Reads a graph and its external data.
pub fn read(path: &Path) -> Result<ModelProto, Error> {
    Ok(kvant_container::onnx::read(path)?)
}

/// Refuses a library of an engine that is not asked for.
pub fn refuse_idle_library(engine: &GraphEngine) -> Result<(), Error> {
    if engine.choice != RuntimeChoice::Rten || engine.library.is_none() {
        return Ok(());
    }
    let error = Error::new(ErrorKind::Usage, "‹runtime-library› and ‹runtime› rten exclude each other");
    Err(error.with_hint(Some("leave one of them out: the library is that of ONNX Runtime".to_owned())))
}
