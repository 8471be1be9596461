//! WordPiece, as in BERT: whole words and, behind `##`, what continues them.

use super::byte_level::tokens;
use super::token::{SPACE, Token, TokenKind};
use super::{TokenizerProblem, Vocabulary};
use serde_json::Value;

/// The vocabulary of a tokenizer.json. In the file, pieces that begin a word are marked, and continuations are not.
pub(crate) fn of_json(tokenizer: &Value) -> Result<Vocabulary, TokenizerProblem> {
    let prefix = tokenizer.pointer("/model/continuing_subword_prefix").and_then(Value::as_str).unwrap_or("##");
    let unknown = tokenizer.pointer("/model/unk_token").and_then(Value::as_str);
    let token = |text: &str, _: usize| match text.strip_prefix(prefix) {
        _ if unknown == Some(text) => Token::new(text, TokenKind::Unknown, 0.0),
        Some(rest) => Token::new(rest, TokenKind::Normal, 0.0),
        None => Token::new(format!("{SPACE}{text}"), TokenKind::Normal, 0.0),
    };
    let tokens = tokens(tokenizer, token)?;
    Ok(Vocabulary { model: "bert", pre: "default", tokens, ..Vocabulary::default() })
}
