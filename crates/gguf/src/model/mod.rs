//! A model as a GGUF file holds it, and the way back: names, metadata and tokenizer, the tensors that llama.cpp's graphs expect with the
//! rows that each is made of, and files seen as the checkpoints that they were made of ([`restore`]). Not which types tensors get.

pub mod architecture;
pub mod codec;
mod content;
mod drafts;
mod error;
mod layers;
pub mod metadata;
pub mod names;
mod outside;
pub mod restore;
pub mod rope;
pub mod tokenizer;
pub mod values;

pub use content::{Content, TensorSlice};
pub(crate) use drafts::drafts;
pub use drafts::{Builder, Draft, drafts_of};
pub use error::GgufPlanError;
