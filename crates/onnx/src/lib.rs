//! ONNX graphs for Kvant: from a float model and calibration data to a quantized model.
//!
//! The flow is `graph -> pass* -> placement -> calibration -> quantize -> write`:
//!
//! * [`graph`] reads a graph's structure: who makes a tensor, who reads it, what is constant.
//!
//! Nothing here knows of Hugging Face checkpoints; file syntax lives in `kvant-container`.

pub mod data;
pub mod graph;
pub mod runtime;
