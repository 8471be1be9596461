//! Decoders of text as graphs: which graphs they are, the inputs that a sequence of tokens becomes, and their logits.
//!
//! [`DecoderGraph::of`] recognises the graphs that optimum, onnxruntime-genai and Kvant export: tokens in, logits out, with a cache of
//! keys and values. [`DecoderSession`] runs one on an engine. Nothing here knows of tokenizers, or of how logits are scored.

mod context;
mod error;
mod feed;
mod samples;
mod session;

pub use context::{context_of, least_memory, state_context};
pub use error::DecoderError;
pub use feed::{DecoderGraph, TOKENS};
pub use session::DecoderSession;

#[cfg(test)]
mod tests;
