//! Text continued by a decoder, token by token, as its logits and a seed decide. Not the pass, which is
//! [`Session`](crate::forward::Session)'s, nor text, which is the tokenizer's.

mod error;
mod generate;
mod sampling;

pub use error::GenerationError;
pub use generate::{Continuation, Finish, GenerationOptions, Next, Progress, generate};
pub use sampling::Sampling;
