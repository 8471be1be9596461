//! Reasons that a model cannot be evaluated.

use crate::forward::ForwardError;
use kvant_container::{Diagnostic, ErrorKind};
use kvant_quant::counts::number;
use std::path::PathBuf;

/// An error of an evaluation.
#[derive(Debug, thiserror::Error)]
pub enum EvaluationError {
    /// The model cannot be run.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// It was asked to stop.
    #[error("stopped")]
    Cancelled,
    /// A file cannot be read.
    #[error("cannot read {}: {cause}", kvant_container::shown(file))]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// The text is not UTF-8.
    #[error("{} is not UTF-8 text: byte {position}", kvant_container::shown(file))]
    NotText {
        /// The file.
        file: PathBuf,
        /// The position of the first invalid byte.
        position: usize,
    },
    /// There are fewer tokens than one window needs.
    #[error("{} {} a window of {window}", number(tokens, "token"), if *tokens == 1 { "does not fill" } else { "do not fill" })]
    TooShort {
        /// Their number.
        tokens: usize,
        /// The window.
        window: usize,
    },
    /// Sequences hold images and no text behind them that could be predicted.
    #[error("the data hold images and no text that could be predicted")]
    NoText,
    /// Sounds have no texts beside them, and there is no reference.
    #[error("no sound has a text beside it that could be predicted")]
    NothingScored,
    /// A window without predictions.
    #[error("a window of {window} predicts nothing")]
    Window {
        /// Its length.
        window: usize,
    },
    /// A stride of zero, or one that leaves gaps.
    #[error("windows of {window} tokens cannot begin {stride} apart")]
    Stride {
        /// The stride.
        stride: usize,
        /// The window.
        window: usize,
    },
    /// Windows that overlap, of a model that reads a text and predicts another.
    #[error("windows of an encoder-decoder do not overlap")]
    StrideOfPairs,
    /// The reference is another model.
    #[error("the {what} of the model is {model}, that of the reference {reference}")]
    Reference {
        /// The difference.
        what: &'static str,
        /// In the model.
        model: usize,
        /// In the reference.
        reference: usize,
    },
    /// Logits of a window that are not a row for each of its tokens.
    #[error("{values} logits are not a row for each of {}", number(tokens, "token"))]
    LogitsShape {
        /// The tokens of the window.
        tokens: usize,
        /// The number of logits.
        values: usize,
    },
    /// The logits of a model that another engine runs are NaN.
    #[error("the likelihood of token {token} of window {at} is not a number")]
    NotANumberElsewhere {
        /// The window.
        at: usize,
        /// The token in it.
        token: usize,
    },
    /// The embeddings of an encoder are NaN.
    #[error("the embedding of a text is not a number{}", because_of(cause))]
    NoEmbedding {
        /// A tensor with a value that is NaN or infinite, and the value; none where the values overflow on the way.
        cause: Option<(String, f32)>,
    },
    /// The model's output is NaN.
    #[error("the likelihood of token {token} of window {at} is not a number{}", because_of(cause))]
    NotANumber {
        /// The window.
        at: usize,
        /// The token in it.
        token: usize,
        /// A tensor with a value that is NaN or infinite, and the value; none where the values overflow on the way.
        cause: Option<(String, f32)>,
    },
}

fn because_of(cause: &Option<(String, f32)>) -> String {
    match cause {
        Some((tensor, value)) => format!(": tensor `{tensor}` contains {value}"),
        None => ": no weight is NaN or infinite, so values overflow in the forward pass".to_owned(),
    }
}

impl Diagnostic for EvaluationError {
    fn kind(&self) -> ErrorKind {
        match self {
            EvaluationError::Forward(error) => error.kind(),
            EvaluationError::Read { .. } => ErrorKind::Io,
            EvaluationError::Cancelled => ErrorKind::Cancelled,
            EvaluationError::Window { .. } | EvaluationError::Stride { .. } | EvaluationError::StrideOfPairs => {
                ErrorKind::Usage
            }
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let text = match self {
            EvaluationError::Forward(error) => return error.hint(),
            EvaluationError::NotText { .. } => "give a text file in UTF-8",
            EvaluationError::TooShort { .. } => "give a longer text, or shorter windows with ‹seq-len›",
            EvaluationError::NothingScored => {
                "put what is said in `a.wav` into `a.txt` beside it, or name the float model with ‹reference›"
            }
            EvaluationError::NoText => "give conversations with text behind the images",
            EvaluationError::Window { .. } => "‹seq-len› is at least 2",
            EvaluationError::Stride { .. } => "‹stride› is at least 1 and at most ‹seq-len›",
            EvaluationError::StrideOfPairs => "leave ‹stride› out",
            EvaluationError::Reference { .. } => "‹reference› is the model that this one was made from",
            EvaluationError::NotANumber { .. } | EvaluationError::NoEmbedding { .. } => {
                "download the checkpoint again, or make it again from the original model"
            }
            EvaluationError::LogitsShape { .. } => "export the graph with the logits of all tokens",
            EvaluationError::NotANumberElsewhere { .. } => {
                "make the graph again from the original model: values overflow in it, as they may in float16"
            }
            EvaluationError::Read { .. } | EvaluationError::Cancelled => return None,
        };
        Some(text.to_owned())
    }
}
