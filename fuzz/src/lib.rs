//! What fuzzers feed with arbitrary bytes, a module for each target: panics are findings.

pub mod calibration_data;
pub mod checkpoint;
pub mod gguf_header;
pub mod gguf_values;
pub mod onnx_model;
pub mod pickle;
pub mod recipe;
pub mod safetensors_header;
pub mod tokenizer;

use kvant::{Error, ErrorKind};

/// What was found; an error has to be the input's, and to say something.
fn settle<T>(found: Result<T, Error>) -> Option<T> {
    found.map_err(|error| assert!(error.kind != ErrorKind::Internal && !error.message.is_empty(), "{error:?}")).ok()
}
