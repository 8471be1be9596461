//! Reasons that a prompt cannot be continued.

use crate::forward::ForwardError;
use kvant_container::{Diagnostic, ErrorKind};

/// An error of a generation.
#[derive(Debug, thiserror::Error)]
pub enum GenerationError {
    /// The model cannot be run.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// It was asked to stop.
    #[error("stopped")]
    Cancelled,
    /// A prompt without tokens.
    #[error("prompt {number} has no tokens")]
    EmptyPrompt {
        /// Its number, from 1.
        number: usize,
    },
    /// A prompt and its continuation are longer than the model's context.
    #[error(
        "prompt {number} of {prompt} tokens and {new} new ones are longer than the {longest} that the model was made for"
    )]
    TooLong {
        /// The number of the prompt, from 1.
        number: usize,
        /// Its tokens.
        prompt: usize,
        /// The tokens that may follow.
        new: usize,
        /// The longest context.
        longest: usize,
    },
    /// Keys and values of one sequence do not fit into memory.
    #[error("keys and values of {tokens} tokens take {needed} bytes of memory, and {allowed} are allowed")]
    Memory {
        /// Tokens of the sequence.
        tokens: usize,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that there are.
        allowed: u64,
    },
    /// A setting is out of its range.
    #[error("{setting} is {value}, and must be {allowed}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: String,
        /// Its range.
        allowed: &'static str,
    },
    /// The model's output is NaN.
    #[error("a logit after {tokens} tokens of prompt {number} is not a number")]
    NotANumber {
        /// The number of the prompt, from 1.
        number: usize,
        /// Tokens before it.
        tokens: usize,
    },
}

impl Diagnostic for GenerationError {
    fn kind(&self) -> ErrorKind {
        match self {
            GenerationError::Forward(error) => error.kind(),
            GenerationError::Cancelled => ErrorKind::Cancelled,
            GenerationError::NotANumber { .. } => ErrorKind::Invalid,
            _ => ErrorKind::Usage,
        }
    }

    fn hint(&self) -> Option<String> {
        let text = match self {
            GenerationError::Forward(error) => return error.hint(),
            GenerationError::EmptyPrompt { .. } => "give a text with at least one token",
            GenerationError::TooLong { prompt, longest, .. } if prompt < longest => {
                return Some(format!("give a shorter prompt, or ‹max-new-tokens› of at most {}", longest - prompt));
            }
            GenerationError::TooLong { .. } => "give a shorter prompt",
            GenerationError::Memory { .. } => "allow more memory with ‹max-memory›, or generate fewer tokens",
            GenerationError::NotANumber { .. } => "weights or activations overflow: the checkpoint may be damaged",
            GenerationError::Setting { .. } | GenerationError::Cancelled => return None,
        };
        Some(text.to_owned())
    }
}
