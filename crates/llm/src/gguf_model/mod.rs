//! A model as a GGUF file holds it, and the way back: names, metadata and tokenizer, the tensors that llama.cpp's graphs expect with the
//! rows that each is made of, and files seen as the checkpoints that they were made of ([`restore`]). Not which types tensors get.

pub mod architecture;
pub(crate) mod codec;
mod content;
mod drafts;
mod error;
mod layers;
pub(crate) mod metadata;
pub(crate) mod names;
mod outside;
pub mod restore;
pub(crate) mod rope;
pub(crate) mod tokenizer;
pub(crate) mod values;

pub use content::{Content, TensorSlice};
pub(crate) use drafts::{Builder, Draft, drafts, drafts_of};
pub use error::GgufPlanError;
