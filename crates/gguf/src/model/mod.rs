//! Conversion of a model to the contents of a GGUF file, and back: names, metadata and tokenizer, the tensors that llama.cpp's graphs expect with the
//! source rows of each, and files restored as checkpoints ([`restore`]). Not the types of tensors.

pub mod architecture;
pub mod codec;
mod content;
mod drafts;
mod error;
mod expected;
mod layers;
pub mod metadata;
pub mod names;
mod numbers;
mod outside;
mod recurrent;
pub mod restore;
pub mod rope;
pub mod tokenizer;
pub mod values;

pub use content::{Change, Content, TensorSlice};
pub(crate) use drafts::drafts;
pub use drafts::{Builder, Draft, drafts_of};
pub use error::GgufPlanError;
pub use numbers::BlockNumbers;
