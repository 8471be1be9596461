//! A token of a vocabulary, and the kinds there are.

use serde_json::Value;

/// The type of a token (`llama_token_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Normal = 1,
    Unknown = 2,
    /// Not part of text.
    Control = 3,
    /// Found in text before anything else is.
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// A token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub text: String,
    pub kind: TokenKind,
    pub score: f32,
}

/// The score of tokens that are never made by merging.
const NEVER: f32 = -1000.0;

impl Token {
    pub fn new(text: impl Into<String>, kind: TokenKind, score: f32) -> Token {
        Token { text: text.into(), kind, score }
    }

    /// The placeholder of an embedding row without a token.
    pub fn padding(id: usize) -> Token {
        Token::new(format!("[PAD{id}]"), TokenKind::Unused, -10_000.0)
    }

    /// A token that was added to a trained vocabulary.
    pub fn added(added: &Added) -> Token {
        let kind =
            if added.special || looks_special(&added.text) { TokenKind::Control } else { TokenKind::UserDefined };
        let text = match kind {
            TokenKind::UserDefined => added.text.replace(SPACE, " "),
            _ => added.text.clone(),
        };
        Token::new(text, kind, NEVER)
    }
}

/// The character for a space in pieces.
pub(crate) const SPACE: char = '\u{2581}';

/// Tokens that are not marked as special but are not text.
fn looks_special(text: &str) -> bool {
    let between = |open: &str, close: &str| text.starts_with(open) && text.ends_with(close);
    matches!(text, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || between("<|", "|>")
        || between("<\u{ff5c}", "\u{ff5c}>")
        || between("<unused", ">")
}

/// An entry of `added_tokens`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Added {
    pub id: usize,
    pub text: String,
    pub special: bool,
}

/// The tokens that were added to a vocabulary; entries that are none are left out.
pub(crate) fn added(tokenizer: &Value) -> Vec<Added> {
    let entries = tokenizer.get("added_tokens").and_then(Value::as_array).into_iter().flatten();
    let entry = |entry: &Value| {
        Some(Added {
            id: usize::try_from(entry.get("id")?.as_u64()?).ok()?,
            text: entry.get("content")?.as_str()?.to_owned(),
            special: entry.get("special").and_then(Value::as_bool).unwrap_or(false),
        })
    };
    entries.filter_map(entry).collect()
}
