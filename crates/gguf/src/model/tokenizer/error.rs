//! Reasons that a tokenizer cannot be written.

use kvant_container::{Diagnostic, ErrorKind};
use kvant_weights::import_error::ImportError;

/// The reason that there is no vocabulary.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerProblem {
    /// A file of the checkpoint.
    #[error(transparent)]
    Container(#[from] kvant_container::Error),
    /// There is none (*invalid*).
    #[error("the checkpoint has neither tokenizer.json nor tokenizer.model, and a GGUF file holds its tokenizer")]
    Missing,
    /// The tokenizer of a GGUF file is not supported.
    #[error(transparent)]
    Source(#[from] ImportError),
    /// A file is not what it should be (*invalid*).
    #[error("tokenizer.json is damaged: {0}")]
    Damaged(String),
    /// There are more tokens than the embedding has rows (*invalid*).
    #[error("the tokenizer has {tokens} tokens, and the embedding has rows for {rows}")]
    TooMany {
        /// Tokens.
        tokens: usize,
        /// Rows.
        rows: usize,
    },
    /// The embedding has more rows than any vocabulary has tokens (*invalid*).
    #[error("the embedding has {0} rows, more than any vocabulary has tokens")]
    Rows(usize),
    /// It is of a kind that llama.cpp has not (*unsupported*).
    #[error("tokenizer.json: a model of type {0} has no counterpart in llama.cpp")]
    Model(String),
    /// Text is split in a way that llama.cpp has not (*unsupported*).
    #[error("tokenizer.json: the pre-tokenizer {0} has no known equivalent in llama.cpp")]
    Split(String),
}

impl Diagnostic for TokenizerProblem {
    fn kind(&self) -> ErrorKind {
        match self {
            TokenizerProblem::Container(error) => error.kind(),
            TokenizerProblem::Source(error) => error.kind(),
            TokenizerProblem::Model(_) | TokenizerProblem::Split(_) => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            TokenizerProblem::Container(error) => error.hint(),
            TokenizerProblem::Source(error) => error.hint(),
            TokenizerProblem::Missing => {
                Some("copy tokenizer.json and tokenizer_config.json of the model into its directory".to_owned())
            }
            TokenizerProblem::Rows(_) => Some("download the weights again: their header is damaged".to_owned()),
            TokenizerProblem::TooMany { .. } => Some("take the tokenizer that came with the weights".to_owned()),
            TokenizerProblem::Damaged(_) => Some("download it again".to_owned()),
            TokenizerProblem::Model(_) | TokenizerProblem::Split(_) => {
                Some("write a checkpoint for other loaders, e.g. with ‹scheme› FP8_DYNAMIC".to_owned())
            }
        }
    }
}
