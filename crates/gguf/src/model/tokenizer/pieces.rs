//! Vocabularies of SentencePiece: pieces with scores, of tokenizer.model or of a tokenizer.json that was made from one.

use super::byte_level::{merge_texts, merges, tokens};
use super::files::Files;
use super::token::{Token, TokenKind, added};
use super::{TokenizerProblem, Vocabulary, pre_tokenizer};
use kvant_container::sentencepiece::{Piece, PieceKind};
use serde_json::Value;
use std::collections::HashMap;

/// The name of the algorithm that merges the pair with the best score.
const MERGING: &str = "llama";

/// The name of the algorithm that merges the pair that comes first in the list of merges.
const MERGING_IN_ORDER: &str = "gemma4";

/// Tokens of Gemma 4 that programs look for in the text of an answer, so that they must not be left out there.
const MARKS: [&str; 7] =
    ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", "<|\"|>"];

/// The name of the algorithm that seeks the likeliest pieces.
const LIKELIEST: &str = "t5";

/// The vocabulary of a tokenizer.json with BPE of pieces. Scores are those of tokenizer.model where that is there; else
/// minus the rank of the first merge that makes a piece, which orders them as the scores that ranks were made from.
pub(crate) fn of_json(tokenizer: &Value, files: &Files) -> Result<Vocabulary, TokenizerProblem> {
    let scores = scores(tokenizer, files.pieces.as_deref())?;
    let unknown = tokenizer.pointer("/model/unk_token").and_then(Value::as_str);
    let last = scores.len() as f32;
    let token = |text: &str, id: usize| {
        // Pieces that no merge produces are never produced: they come last.
        let score = scores.get(text).copied().unwrap_or(-last - id as f32);
        piece_token(text, score, unknown)
    };
    let tokens = tokens(tokenizer, token)?;
    let space_prefix = Some(pre_tokenizer::prefixes_a_space(tokenizer));
    Ok(Vocabulary { model: MERGING, pre: "default", tokens, scored: true, space_prefix, ..Vocabulary::default() })
}

/// The vocabulary of a tokenizer.json with BPE of pieces whose merges decide, not scores (Gemma 4).
pub(crate) fn of_merges(tokenizer: &Value) -> Result<Vocabulary, TokenizerProblem> {
    let unknown = tokenizer.pointer("/model/unk_token").and_then(Value::as_str);
    let mut tokens = tokens(tokenizer, |text, _| piece_token(text, 0.0, unknown))?;
    for token in tokens.iter_mut().filter(|token| MARKS.contains(&token.text.as_str())) {
        token.kind = TokenKind::UserDefined;
    }
    let merges = merge_texts(tokenizer)?;
    let space_prefix = Some(pre_tokenizer::prefixes_a_space(tokenizer));
    Ok(Vocabulary { model: MERGING_IN_ORDER, pre: MERGING_IN_ORDER, tokens, scored: true, merges, space_prefix })
}

fn scores(tokenizer: &Value, pieces: Option<&[Piece]>) -> Result<HashMap<String, f32>, TokenizerProblem> {
    if let Some(pieces) = pieces {
        return Ok(pieces.iter().map(|piece| (piece.text.clone(), piece.score)).collect());
    }
    let mut scores = HashMap::new();
    for (rank, (left, right)) in merges(tokenizer)?.into_iter().enumerate() {
        scores.entry(left + &right).or_insert(-(rank as f32));
    }
    Ok(scores)
}

fn piece_token(text: &str, score: f32, unknown: Option<&str>) -> Token {
    let kind = match text {
        _ if unknown == Some(text) => TokenKind::Unknown,
        _ if is_byte(text) => TokenKind::Byte,
        _ => TokenKind::Normal,
    };
    Token::new(text, kind, score)
}

/// Returns whether a piece represents a byte: `<0x0A>`.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// The vocabulary of a tokenizer.json with a unigram model.
pub(crate) fn of_unigram(tokenizer: &Value) -> Result<Vocabulary, TokenizerProblem> {
    let damaged = || TokenizerProblem::Damaged("its vocabulary is not a list of pieces and scores".to_owned());
    let list = tokenizer.pointer("/model/vocab").and_then(Value::as_array).ok_or_else(damaged)?;
    let unknown = tokenizer.pointer("/model/unk_id").and_then(Value::as_u64);
    let piece = |(id, entry): (usize, &Value)| {
        let (text, score) = (entry.get(0)?.as_str()?, entry.get(1)?.as_f64()?);
        let token = piece_token(text, score as f32, None);
        Some(if unknown == Some(id as u64) { Token { kind: TokenKind::Unknown, ..token } } else { token })
    };
    let mut tokens =
        list.iter().enumerate().map(|entry| piece(entry).ok_or_else(damaged)).collect::<Result<Vec<_>, _>>()?;
    for added in added(tokenizer) {
        match tokens.get(added.id).map(|token| token.kind) {
            Some(TokenKind::Unknown) => {}
            Some(_) => tokens[added.id] = Token::added(&added),
            None if added.id == tokens.len() => tokens.push(Token::added(&added)),
            None => return Err(TokenizerProblem::Damaged(format!("a token has the number {}", added.id))),
        }
    }
    let space_prefix = Some(pre_tokenizer::prefixes_a_space(tokenizer));
    Ok(Vocabulary { model: LIKELIEST, pre: "default", tokens, scored: true, space_prefix, ..Vocabulary::default() })
}

/// The vocabulary of a tokenizer.model alone.
pub(crate) fn of_model(files: &Files) -> Result<Vocabulary, TokenizerProblem> {
    let pieces = files.pieces.as_deref().ok_or(TokenizerProblem::Missing)?;
    let kind = |kind: PieceKind| match kind {
        PieceKind::Normal => TokenKind::Normal,
        PieceKind::Unknown => TokenKind::Unknown,
        PieceKind::Control => TokenKind::Control,
        PieceKind::UserDefined => TokenKind::UserDefined,
        PieceKind::Unused => TokenKind::Unused,
        PieceKind::Byte => TokenKind::Byte,
    };
    let tokens = pieces.iter().map(|piece| Token::new(piece.text.clone(), kind(piece.kind), piece.score)).collect();
    let space_prefix = files.stated("add_prefix_space").and_then(Value::as_bool);
    Ok(Vocabulary { model: MERGING, pre: "default", tokens, scored: true, space_prefix, ..Vocabulary::default() })
}
