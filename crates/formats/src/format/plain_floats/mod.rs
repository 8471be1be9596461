//! Plain floats on the grid of codes, with quantized activations described in config.json. Not a checkpoint format: the tensors
//! keep the names, shapes and types of the source.

mod config;
mod import;

pub use config::{FAKE_QUANTIZATION, FakeQuantization, with_parameters};
pub(crate) use import::activations;
pub use import::is_fake_quantized;
