//! GGUF files for llama.cpp: the whole model, with its tokenizer, in one file.
//!
//! The flow, in the order of the modules:
//!
//! * [`recipe`]: an ftype, and tensor types by name,
//! * [`plan`]: the contents of the file: metadata, tensors, types, offsets; invalid requests are refused here,
//! * [`run`]: the execution, in parallel, in bounded memory, resumable through the same [`Output`](crate::engine::Output),
//! * [`restore`](kvant_gguf::model::restore): GGUF files read back as the checkpoints that they were converted from,
//! * [`imatrix`]: the importance of inputs, measured or read from llama.cpp's files.
//!
//! Names of tensors follow from roles, transformations of weights from the descriptions of families: [`architecture`](kvant_gguf::model::architecture) says
//! what llama.cpp's graphs expect beyond them.

mod carried;
pub mod imatrix;
mod measure;
pub mod plan;
pub mod recipe;
pub mod run;
mod source;

pub use carried::{Accepted, Carried};
pub use measure::measure;
pub use plan::GgufPlan;
pub use recipe::GgufRecipe;
