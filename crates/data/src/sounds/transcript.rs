//! What is said in a sound as the tokens that a decoder is to predict, behind the special tokens that the checkpoint begins with.

use super::error::SoundDataError;
use crate::tokenizer::{ModelTokenizer, TokenizerError};
use kvant_container::{Diagnostic, ErrorKind, model_directory};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// Turns texts of sounds into tokens.
#[derive(Debug)]
pub struct Transcripts {
    tokenizer: ModelTokenizer,
    /// What the tokenizer makes of nothing: the special tokens at either end.
    bare: Vec<u32>,
    /// The tokens that generation begins with behind the first, if generation_config.json names all of them.
    forced: Option<Vec<u32>>,
}

/// The tokens of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranscriptTokens {
    /// Special tokens before the text, which are given to the decoder.
    pub prefix: Vec<u32>,
    /// The text, and what ends it.
    pub text: Vec<u32>,
}

impl Transcripts {
    /// With the tokenizer of a model. The special tokens are `forced_decoder_ids` of generation_config.json where none of them is left open,
    /// else those that the tokenizer puts before every text. No language is chosen.
    ///
    /// # Errors
    /// A model without a tokenizer, a generation_config.json that is no JSON.
    pub fn open(model: &Path) -> Result<Transcripts, TranscriptError> {
        let tokenizer = ModelTokenizer::open(model)?;
        let bare = tokenizer.encode("")?;
        Ok(Transcripts { tokenizer, bare, forced: forced(&model_directory(model).join("generation_config.json"))? })
    }

    /// The tokens of a text for a decoder that begins with `start`, which is none of them.
    ///
    /// # Errors
    /// Texts that the tokenizer refuses.
    pub fn tokens(&self, text: &str, start: u32) -> Result<TranscriptTokens, TranscriptError> {
        let all = self.tokenizer.encode(text)?;
        let equal = all.iter().zip(&self.bare).take_while(|(a, b)| a == b).count();
        let (prefix, text) = all.split_at(equal);
        let prefix = self.forced.as_deref().unwrap_or_else(|| prefix.strip_prefix(&[start]).unwrap_or(prefix));
        Ok(TranscriptTokens { prefix: prefix.to_vec(), text: text.to_vec() })
    }
}

/// An error of texts of sounds.
#[derive(Debug, thiserror::Error)]
pub enum TranscriptError {
    /// The tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The texts or what goes before them cannot be read.
    #[error(transparent)]
    Sound(#[from] SoundDataError),
}

impl Diagnostic for TranscriptError {
    fn kind(&self) -> ErrorKind {
        match self {
            TranscriptError::Tokenizer(error) => error.kind(),
            TranscriptError::Sound(error) => error.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            TranscriptError::Tokenizer(error) => error.hint(),
            TranscriptError::Sound(error) => error.hint(),
        }
    }
}

/// `forced_decoder_ids` of a file, pairs of a place from 1 on and a token, where all places are there and none is open.
fn forced(file: &Path) -> Result<Option<Vec<u32>>, SoundDataError> {
    if !file.is_file() {
        return Ok(None);
    }
    let invalid = |problem: String| SoundDataError::Extractor { file: PathBuf::from(file), problem };
    let text = fs::read_to_string(file).map_err(|cause| invalid(format!("cannot be read: {cause}")))?;
    let config: Value = serde_json::from_str(&text).map_err(|cause| invalid(format!("is no JSON: {cause}")))?;
    let Some(pairs) = config.get("forced_decoder_ids").and_then(Value::as_array) else { return Ok(None) };
    let token = |(at, pair): (usize, &Value)| {
        let place = pair.get(0)?.as_u64()?;
        let token = u32::try_from(pair.get(1)?.as_u64()?).ok()?;
        (place == at as u64 + 1).then_some(token)
    };
    Ok(pairs.iter().enumerate().map(token).collect::<Option<Vec<u32>>>().filter(|tokens| !tokens.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A tokenizer of words that puts 0 and 2 before each text and 1 behind it.
    fn model(generation: Option<&str>) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let special = |id: u32, content: &str| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
        let piece = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let named = |id: u32, name: &str| json!({"id": name, "ids": [id], "tokens": [name]});
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "decoder": null,
            "added_tokens": [special(0, "<s>"), special(1, "<e>"), special(2, "<t>")],
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": {"type": "TemplateProcessing", "single": [piece("<s>"), piece("<t>"), text, piece("<e>")], "pair": [],
                "special_tokens": {"<s>": named(0, "<s>"), "<e>": named(1, "<e>"), "<t>": named(2, "<t>")}},
            "model": {"type": "WordLevel", "vocab": {"<s>": 0, "<e>": 1, "<t>": 2, "one": 3, "two": 4, "<u>": 5}, "unk_token": "<u>"},
        });
        fs::write(dir.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        generation.iter().for_each(|text| fs::write(dir.path().join("generation_config.json"), text).unwrap());
        dir
    }

    fn tokens(generation: Option<&str>, start: u32) -> TranscriptTokens {
        let dir = model(generation);
        Transcripts::open(dir.path()).unwrap().tokens("two one", start).unwrap()
    }

    #[test]
    fn texts_stand_behind_the_special_tokens_of_the_tokenizer() {
        assert_eq!(tokens(None, 0), TranscriptTokens { prefix: vec![2], text: vec![4, 3, 1] });
        assert_eq!(tokens(None, 9).prefix, [0, 2], "the decoder begins with another token");
    }

    #[test]
    fn forced_tokens_count_where_none_is_open() {
        assert_eq!(tokens(Some(r#"{"forced_decoder_ids": [[1, 7], [2, 8]]}"#), 0).prefix, [7, 8]);
        assert_eq!(tokens(Some(r#"{"forced_decoder_ids": [[1, null], [2, 8]]}"#), 0).prefix, [2]);
        assert_eq!(tokens(Some(r#"{"forced_decoder_ids": [[2, 8]]}"#), 0).prefix, [2]);
        assert_eq!(tokens(Some(r#"{"forced_decoder_ids": null}"#), 0).prefix, [2]);
    }
}
