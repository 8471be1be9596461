//! The command as users meet it: what it prints, what it writes, how it ends.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, outside `#[test]` functions.

mod agreement;
mod algorithms;
mod calibrate;
mod convert;
mod counts;
mod decoder_graphs;
mod errors;
mod evaluate;
mod external_data;
mod family;
#[cfg(unix)]
mod generate;
mod graph_formats;
mod graph_tools;
mod help;
mod inspect;
mod json;
mod kvant;
mod layer_types;
mod list;
mod lora;
mod made_model;
mod many_outputs;
mod model_card;
mod onnx;
mod paths;
mod pipelines;
mod plan;
mod preflight;
mod quality;
mod quantize;
#[cfg(unix)]
mod remote;
mod reports;
#[cfg(unix)]
mod resume;
#[cfg(unix)]
mod resume_graph;
mod rotation;
mod search;
mod statistics;
mod usage;
mod verify;
#[cfg(unix)]
mod workers;
