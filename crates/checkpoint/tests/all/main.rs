//! The tests of the library as its users call it, in one program: linking one for each file took longer than compiling them.

mod activation_histograms;
mod blockwise;
#[path = "../common/mod.rs"]
mod common;
mod conversions;
mod engine;
mod excluded_codes;
mod folding;
mod gguf;
mod gguf_of_gguf;
mod gguf_source;
mod import;
mod lora;
mod planned_algorithms;
mod quark_configs;
mod static_activations;
#[allow(clippy::unwrap_used)] // Helpers of tests.
#[path = "../../../model/tests/support/mod.rs"]
mod support;
mod undescribed;
mod verify;
