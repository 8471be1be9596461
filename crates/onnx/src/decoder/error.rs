//! Reasons that a graph is not run on text.

use kvant_container::{Diagnostic, ErrorKind, Remedy};
use kvant_quant::counts::number;

use crate::data::DataError;
use crate::pass::PassError;
use crate::runtime::RuntimeError;

/// A problem of a graph that is to be run on tokens.
#[derive(Debug, thiserror::Error)]
pub enum DecoderError {
    /// The graph is something else.
    #[error("the graph is no decoder of text: it has no {missing}")]
    NoDecoder {
        /// What a decoder has.
        missing: &'static str,
    },
    /// An input that does not follow from tokens.
    #[error("the value of input `{input}` does not follow from text: {problem}")]
    Input {
        /// The input.
        input: String,
        /// The reason.
        problem: String,
    },
    /// The graph takes sequences of one length.
    #[error("the graph takes sequences of {}, and this one has {given}", number(fixed, "token"))]
    Length {
        /// The length.
        fixed: usize,
        /// The length of the sequence.
        given: usize,
    },
    /// A table of positions has no rows for all tokens.
    #[error("the graph has positions for {}, and this sequence has {given}", number(most, "token"))]
    TooLong {
        /// The rows.
        most: usize,
        /// The length of the sequence.
        given: usize,
    },
    /// Logits that are not a row for each token.
    #[error("output `logits` has the shape {shape:?} for {}", number(tokens, "token"))]
    Logits {
        /// Their shape.
        shape: Vec<usize>,
        /// The tokens.
        tokens: usize,
    },
    /// The engine.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The graph could not be made ready for an engine.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// Samples of tokens.
    #[error(transparent)]
    Data(#[from] DataError),
}

/// The way to a length that a graph takes.
fn give(length: usize) -> String {
    format!("give that length with ‹seq-len› {length}")
}

impl Diagnostic for DecoderError {
    fn kind(&self) -> ErrorKind {
        match self {
            DecoderError::NoDecoder { .. } | DecoderError::Input { .. } | DecoderError::Logits { .. } => {
                ErrorKind::Unsupported
            }
            DecoderError::Length { .. } | DecoderError::TooLong { .. } => ErrorKind::Usage,
            DecoderError::Runtime(error) => error.kind(),
            DecoderError::Pass(error) => error.kind(),
            DecoderError::Data(error) => error.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        let text = match self {
            DecoderError::NoDecoder { .. } => "give arrays of its inputs with ‹data› FILE.npz",
            DecoderError::Input { .. } => {
                "export the decoder with `input_ids`, `attention_mask`, `position_ids` and `past_key_values` alone, or give arrays of \
                 all inputs with ‹data› FILE.npz"
            }
            DecoderError::Length { fixed: length, .. } | DecoderError::TooLong { most: length, .. } => {
                return Some(give(*length));
            }
            DecoderError::Logits { .. } => "export the decoder with the logits of all tokens, not only of the last one",
            DecoderError::Runtime(error) => return error.hint(),
            DecoderError::Pass(error) => return error.hint(),
            DecoderError::Data(error) => return error.hint(),
        };
        Some(text.to_owned())
    }

    fn remedies(&self) -> Vec<Remedy> {
        match self {
            DecoderError::Length { fixed: length, .. } | DecoderError::TooLong { most: length, .. } => {
                vec![Remedy::Setting { name: "seq-len", value: Some(length.to_string()), text: give(*length) }]
            }
            DecoderError::Runtime(error) => error.remedies(),
            DecoderError::Pass(error) => error.remedies(),
            DecoderError::Data(error) => error.remedies(),
            _ => self.hint().map(Remedy::text).into_iter().collect(),
        }
    }
}
