//! ONNX graphs for Kvant: from a float model and calibration data to a quantized model.
//!
//! The flow is `graph -> pass* -> placement -> calibration -> quantize -> write`:
//!
//! * [`graph`] reads a graph's structure: producers, consumers and constants;
//! * [`pass`] simplifies and rewrites the float model, every rewrite keeping its outputs; [`shape`] finds types and shapes;
//! * [`placement`] decides from a table of rules which tensors are quantized, [`calibration`] finds their ranges as a model
//!   runs over data, [`solution`] their scales and zero points; [`npu`] adjusts both to hardware;
//! * [`algorithm`] recovers accuracy lost by rounding: before calibration, when codes are chosen, and after; `algorithm_settings` and
//!   `calibration_method` are the options that recipes name;
//! * [`data`] lends samples from files, [`runtime`] runs the float model on them;
//! * [`decoder`] recognises decoders of text, and runs them on tokens; `kv_cache` knows their caches of keys and values;
//! * [`writing`] writes the quantized graph; [`quantize`] is the whole run, [`preset`] the recipes with names, [`cost`] what a
//!   run will cost;
//! * [`ranges`] reads and writes the ranges of tensors in files of other tools;
//! * [`evaluation`] compares it with the float model, [`kernel`] computes the operators that no engine has;
//! * [`tool`] has further changes of graphs that users name one by one.
//!
//! Nothing here knows of Hugging Face checkpoints; file syntax lives in `kvant-container`.

pub mod algorithm;
mod algorithm_settings;
mod block_map;
pub mod calibration;
mod calibration_method;
pub mod constant;
pub mod cost;
pub mod count;
pub mod data;
pub mod decoder;
pub mod element;
pub mod error;
pub mod evaluation;
mod fake_quantization;
pub mod fusions;
pub mod graph;
pub mod kernel;
mod known_operators;
mod kv_cache;
mod masks;
pub mod npu;
pub mod pass;
pub mod placement;
pub mod preset;
pub mod quantization;
pub mod quantize;
pub mod ranges;
pub mod recipe;
pub mod report;
pub mod runtime;
pub mod sensitivity;
pub mod settings;
pub mod shape;
pub mod solution;
mod tensor_store;
#[cfg(test)]
mod test_models;
pub mod tool;
mod unknown_word;
pub mod verify;
pub mod writing;

pub use unknown_word::UnknownWord;
