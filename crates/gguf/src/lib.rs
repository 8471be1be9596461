//! Models in GGUF files.
//!
//! * [`model`]: a model as a GGUF file holds it, and the way back: files seen as the checkpoints that they were made of,
//! * [`ftype`]: which types llama.cpp gives to tensors.
//!
//! Writing such files takes plans and data, which are in `kvant-checkpoint`.

pub mod ftype;
pub mod model;
