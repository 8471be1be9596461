//! How good a model is: measured on text, with the forward pass of [`crate::forward`].

mod error;
mod perplexity;
mod text;

pub use error::EvaluationError;
pub use perplexity::{Perplexity, default_window, perplexity};
pub use text::tokenize;
