//! A unit of calibration data before it is tokenized, what a file hands out, and why a row can be of no use.

use super::{CalibrationDataError, conversation};
use serde::Serialize;
use serde_json::Value;
use std::fmt;
use std::ops::ControlFlow;

/// A unit of text that is tokenized together.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Document {
    /// Plain text.
    Text(String),
    /// Messages, each an object with `role` and `content`, for the chat template.
    Conversation(Vec<Value>),
    /// Tokens, made by someone else and not checked yet.
    Tokens(Vec<i64>),
}

impl Document {
    /// Returns whether it is a conversation with images.
    pub(super) fn has_images(&self) -> bool {
        matches!(self, Document::Conversation(messages) if conversation::images(messages).next().is_some())
    }
}

/// An item read from a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Row {
    /// The file as one document; `cut` says that the file continues beyond the needed part.
    Whole {
        /// The document.
        document: Document,
        /// Whether only the file's beginning was read.
        cut: bool,
    },
    /// One of the file's rows.
    Record(Document),
    /// A row that is of no use.
    Skipped(Skip),
}

impl From<Result<Document, Skip>> for Row {
    fn from(row: Result<Document, Skip>) -> Row {
        row.map_or_else(Row::Skipped, Row::Record)
    }
}

/// Takes rows until it has enough.
pub(super) type Sink<'a> = dyn FnMut(Row) -> Result<ControlFlow<()>, CalibrationDataError> + 'a;

/// Takes rows with their fields until it has enough.
pub(super) type RowSink<'a> = dyn FnMut(Result<Value, Skip>) -> Result<ControlFlow<()>, CalibrationDataError> + 'a;

/// The reason that a row is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Skip {
    /// A line is not UTF-8.
    NotUtf8,
    /// A line is not JSON.
    NotJson,
    /// A row is larger than any text should be.
    TooLarge,
    /// A row is a number or another value without fields.
    NoFields,
    /// There is no field that holds text, a conversation or tokens.
    NoText,
    /// The conversation holds what is not text, or has no roles.
    NotAConversation,
    /// The chat template refuses the conversation.
    Refused,
    /// The rendered conversation names other images than its messages have.
    OtherImages,
    /// The row has images in a field beside its text.
    ImagesBeside,
    /// It has no token.
    Empty,
    /// A document does not fill a window.
    TooShort,
}

impl Skip {
    /// The remedy if most rows have this problem.
    pub(super) fn hint(self) -> &'static str {
        match self {
            Skip::NotUtf8 => "give text in UTF-8",
            Skip::NotJson => {
                "every line of such a file is one JSON value: look at its first lines, or name it .txt if it is text"
            }
            Skip::TooLarge => "give documents as rows of their own",
            Skip::NoFields => {
                "every row must be a string, a conversation, a list of tokens, or an object with such a field"
            }
            Skip::NoText => {
                "name the field in which rows keep a string, a conversation or a list of tokens with ‹column›"
            }
            Skip::NotAConversation => {
                "conversations are lists of messages with `role` and `content`, which is text or a list of parts of type `text` or `image`; text needs no roles"
            }
            Skip::Refused => "give what the model's chat template takes, or text instead of conversations",
            Skip::OtherImages => {
                "texts must not contain what stands for an image, and the chat template must render each image"
            }
            Skip::ImagesBeside => {
                "put each image where it belongs in the content of its message: {\"type\": \"image\", \"image\": PATH}, and take `image` and `images` out"
            }
            Skip::Empty => "give files that hold text",
            Skip::TooShort => {
                "give longer text, shorter sequences with ‹seq-len›, or join rows with ‹packing› concatenate"
            }
        }
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Skip::NotUtf8 => "not UTF-8",
            Skip::NotJson => "not JSON",
            Skip::TooLarge => "too large",
            Skip::NoFields => "without text and fields",
            Skip::NoText => "without a known field of text",
            Skip::NotAConversation => "not a conversation of text and images",
            Skip::Refused => "refused by the chat template",
            Skip::OtherImages => "whose text names other images than it has",
            Skip::ImagesBeside => "with images in a field beside the text",
            Skip::Empty => "empty",
            Skip::TooShort => "shorter than a window",
        })
    }
}
