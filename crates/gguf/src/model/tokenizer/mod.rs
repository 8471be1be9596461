//! The tokenizer of a checkpoint in the words of GGUF: tokens, their kinds and scores, merges, special tokens, the chat
//! template. Decided by what tokenizer.json says, not by the model's name.
//!
//! Source: `gguf/vocab.py` of gguf-py, `get_vocab_base` and `_create_vocab_sentencepiece` of llama.cpp's converter, and
//! `src/llama-vocab.cpp` for what becomes of it.

mod byte_level;
mod error;
mod files;
mod named;
mod pieces;
mod pre_tokenizer;
pub mod special;
#[cfg(test)]
mod tests;
mod token;
mod word_piece;

pub use error::TokenizerProblem;
pub use named::{rename, wanted_by_name};
pub(crate) use pre_tokenizer::ways;
pub(crate) use token::{SPACE, TokenKind};

use files::Files;
use kvant_container::Checkpoint;
use kvant_container::gguf::{Metadata, Text};
use token::Token;

/// Tokens by number, and how text becomes them.
#[derive(Debug, Default)]
struct Vocabulary {
    /// `tokenizer.ggml.model`: which algorithm makes tokens.
    model: &'static str,
    /// `tokenizer.ggml.pre`: how text is split before.
    pre: &'static str,
    tokens: Vec<Token>,
    /// Whether tokens have scores.
    scored: bool,
    /// Pairs that are merged, the first first; for BPE by the order of merges.
    merges: Vec<String>,
    /// Whether a space is put in front of a text, where that is known.
    space_prefix: Option<bool>,
}

/// Defaults of a family's tokenizers that their files do not state.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    /// The family's name.
    pub family: &'static str,
    /// Rows of the embedding: vocabularies are padded to as many.
    pub rows: usize,
}

/// Adds the tokenizer of a checkpoint to the metadata.
///
/// # Errors
/// [`TokenizerProblem`]: no tokenizer, one that is damaged, or of a kind that llama.cpp has not.
pub fn describe(
    checkpoint: &Checkpoint,
    habits: Habits,
    metadata: &mut Metadata,
) -> Result<Vec<String>, TokenizerProblem> {
    let files = Files::read(checkpoint)?;
    let mut vocabulary = match &files.tokenizer {
        Some(tokenizer) => read_json(tokenizer, &files, habits)?,
        None => pieces::of_model(&files)?,
    };
    let notices = files.notices();
    pad(&mut vocabulary.tokens, habits.rows)?;
    write(vocabulary, metadata);
    special::describe(&files, habits, metadata);
    Ok(notices)
}

/// The vocabulary that a tokenizer.json describes.
fn read_json(tokenizer: &serde_json::Value, files: &Files, habits: Habits) -> Result<Vocabulary, TokenizerProblem> {
    let kind = tokenizer.pointer("/model/type").and_then(|kind| kind.as_str());
    let fallback = tokenizer.pointer("/model/byte_fallback").and_then(|flag| flag.as_bool()).unwrap_or(false);
    match kind {
        // Files of early versions do not say that they hold BPE.
        Some("BPE") | None if fallback && !byte_level::is_byte_level(tokenizer) => match habits.family {
            "gemma4" => pieces::of_merges(tokenizer),
            _ => pieces::of_json(tokenizer, files),
        },
        Some("BPE") | None => byte_level::of_json(tokenizer, habits.family),
        Some("Unigram") => pieces::of_unigram(tokenizer),
        Some("WordPiece") => word_piece::of_json(tokenizer),
        Some(other) => Err(TokenizerProblem::Model(other.to_owned())),
    }
}

/// Brings a vocabulary to the rows of the embedding.
fn pad(tokens: &mut Vec<Token>, rows: usize) -> Result<(), TokenizerProblem> {
    if tokens.len() > rows {
        return Err(TokenizerProblem::TooMany { tokens: tokens.len(), rows });
    }
    if rows > byte_level::MAX_TOKENS {
        return Err(TokenizerProblem::Rows(rows));
    }
    let unused = (tokens.len()..rows).map(Token::padding);
    tokens.extend(unused.collect::<Vec<_>>());
    Ok(())
}

fn write(vocabulary: Vocabulary, metadata: &mut Metadata) {
    let Vocabulary { model, pre, tokens, scored, merges, space_prefix } = vocabulary;
    metadata.set("tokenizer.ggml.model", model);
    metadata.set("tokenizer.ggml.pre", pre);
    if scored {
        metadata.set("tokenizer.ggml.scores", tokens.iter().map(|token| token.score).collect::<Vec<f32>>());
    }
    metadata.set("tokenizer.ggml.token_type", tokens.iter().map(|token| token.kind as i32).collect::<Vec<i32>>());
    metadata.set("tokenizer.ggml.tokens", tokens.into_iter().map(|token| Text::from(token.text)).collect::<Vec<_>>());
    // Its loader wants the list, even an empty one.
    if model == "gpt2" || !merges.is_empty() {
        metadata.set("tokenizer.ggml.merges", merges.into_iter().map(Text::from).collect::<Vec<_>>());
    }
    metadata.set_some("tokenizer.ggml.add_space_prefix", space_prefix);
}
