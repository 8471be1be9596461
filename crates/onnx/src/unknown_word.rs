//! The error of every word or form of words that settings of graphs do not know.

use std::borrow::Cow;

/// A text that is none of those that are understood. Always *invalid*.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is not {expected}")]
pub struct UnknownWord {
    word: String,
    expected: Cow<'static, str>,
}

impl UnknownWord {
    /// The text, and what was expected, as the rest of the sentence.
    pub(crate) fn new(word: &str, expected: impl Into<Cow<'static, str>>) -> UnknownWord {
        UnknownWord { word: word.to_owned(), expected: expected.into() }
    }
}
