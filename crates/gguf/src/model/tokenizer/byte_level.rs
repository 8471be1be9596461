//! Byte-level BPE, as in GPT-2: tokens of bytes that are written as letters, and merges of them.

use super::token::{Token, TokenKind, added};
use super::{TokenizerProblem, Vocabulary, pre_tokenizer};
use serde_json::Value;

/// The most tokens of a vocabulary; numbers beyond are not believed.
pub(crate) const MAX_TOKENS: usize = 1 << 24;

/// What is wrong with a file without tokens.
const NO_VOCABULARY: &str = "it has no vocabulary";

/// Returns whether text is mapped to letters for its bytes.
pub(crate) fn is_byte_level(tokenizer: &Value) -> bool {
    fn has_step(node: &Value) -> bool {
        let is_it = node.get("type").is_some_and(|kind| kind == "ByteLevel");
        let inner = node.get("pretokenizers").or_else(|| node.get("decoders")).and_then(Value::as_array);
        is_it || inner.into_iter().flatten().any(has_step)
    }
    ["pre_tokenizer", "decoder"].iter().filter_map(|key| tokenizer.get(*key)).any(has_step)
}

/// The vocabulary of a tokenizer.json.
pub(crate) fn of_json(tokenizer: &Value, family: &str) -> Result<Vocabulary, TokenizerProblem> {
    if tokenizer.pointer("/model/vocab").is_none() {
        return Err(TokenizerProblem::Damaged(NO_VOCABULARY.to_owned()));
    }
    if !is_byte_level(tokenizer) {
        return Err(TokenizerProblem::Model("BPE of characters".to_owned()));
    }
    let pre = pre_tokenizer::name(tokenizer, family)?;
    let tokens = tokens(tokenizer, |text, _| Token::new(text, TokenKind::Normal, 0.0))?;
    Ok(Vocabulary { model: "gpt2", pre, tokens, merges: merge_texts(tokenizer)?, ..Vocabulary::default() })
}

/// The merges of a tokenizer.json as files have them: both parts with a space between.
pub(crate) fn merge_texts(tokenizer: &Value) -> Result<Vec<String>, TokenizerProblem> {
    let merges = merges(tokenizer)?.into_iter();
    Ok(merges.map(|(left, right)| format!("{} {}", visible(&left), visible(&right))).collect())
}

/// Spaces inside of a part would be confused with the one between parts: they are written as the letter for the byte.
fn visible(part: &str) -> String {
    part.replace(' ', "\u{120}")
}

/// The tokens of a vocabulary that maps text to numbers, with those that were added to it. Numbers that no token has are
/// filled up.
pub(crate) fn tokens(tokenizer: &Value, token: impl Fn(&str, usize) -> Token) -> Result<Vec<Token>, TokenizerProblem> {
    let damaged = |what: &str| TokenizerProblem::Damaged(what.to_owned());
    let vocabulary = tokenizer.pointer("/model/vocab").and_then(Value::as_object);
    let vocabulary = vocabulary.ok_or_else(|| damaged(NO_VOCABULARY))?;
    let mut tokens: Vec<Option<Token>> = Vec::with_capacity(vocabulary.len());
    let mut put = |id: usize, token: Token| {
        if id >= MAX_TOKENS {
            return Err(TokenizerProblem::Damaged(format!("a token has the number {id}")));
        }
        if id >= tokens.len() {
            tokens.resize(id + 1, None);
        }
        tokens[id] = Some(token);
        Ok(())
    };
    for (text, id) in vocabulary {
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok()).ok_or_else(|| damaged("a token has no index"))?;
        put(id, token(text, id))?;
    }
    added(tokenizer).iter().try_for_each(|added| put(added.id, Token::added(added)))?;
    Ok(tokens.into_iter().enumerate().map(|(id, token)| token.unwrap_or_else(|| Token::padding(id))).collect())
}

/// The merges of a tokenizer.json in order: pairs, in newer files as two strings, in older ones as one.
pub(crate) fn merges(tokenizer: &Value) -> Result<Vec<(String, String)>, TokenizerProblem> {
    let merges = tokenizer.pointer("/model/merges").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let pair = |merge: &Value| match merge {
        Value::String(text) => text.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned())),
        Value::Array(parts) => match parts.as_slice() {
            [left, right] => Some((left.as_str()?.to_owned(), right.as_str()?.to_owned())),
            _ => None,
        },
        _ => None,
    };
    let damaged = || TokenizerProblem::Damaged("a merge is not a pair".to_owned());
    merges.iter().map(|merge| pair(merge).ok_or_else(damaged)).collect()
}
