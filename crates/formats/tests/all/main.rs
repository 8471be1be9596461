//! The tests of the library as its users call it, in one program.

#[path = "../common/mod.rs"]
mod common;
mod compressed_tensors_configs;
mod convolutions;
mod formats;
mod import_activations;
mod import_hostile;
mod import_others;
mod quark_biases;
