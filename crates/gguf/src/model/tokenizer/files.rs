//! The files of a checkpoint that say something of its tokenizer. What they say is for others.

use super::TokenizerProblem;
use crate::model::restore::tokenizer_json;
use kvant_container::Checkpoint;
use kvant_container::sentencepiece::{Piece, read_pieces};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::path::Path;

/// The most bytes of a chat template.
const MAX_TEMPLATE: u64 = 4 << 20;

/// The results.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// tokenizer.json.
    pub tokenizer: Option<Value>,
    /// tokenizer_config.json.
    pub config: Option<Value>,
    /// config.json.
    pub model: Option<Value>,
    /// generation_config.json.
    pub generation: Option<Value>,
    /// The pieces of tokenizer.model, where it is one of SentencePiece.
    pub pieces: Option<Vec<Piece>>,
    /// chat_template.jinja.
    pub template: Option<String>,
}

impl Files {
    /// Reads the existing files.
    pub fn read(checkpoint: &Checkpoint) -> Result<Files, TokenizerProblem> {
        let json = |name: &str| checkpoint.json(name);
        let place = checkpoint.directory().unwrap_or_else(|| checkpoint.path());
        let tokenizer = json("tokenizer.json")?;
        let pieces = pieces(&place.join("tokenizer.model"), tokenizer.is_some())?;
        if tokenizer.is_none() && pieces.is_none() {
            checkpoint.gguf().map(tokenizer_json).transpose()?;
            return Err(TokenizerProblem::Missing);
        }
        Ok(Files {
            tokenizer,
            pieces,
            config: json("tokenizer_config.json")?,
            model: checkpoint.config()?,
            generation: json("generation_config.json")?,
            template: template(&place.join("chat_template.jinja")),
        })
    }

    /// A value of tokenizer_config.json.
    pub fn stated(&self, key: &str) -> Option<&Value> {
        self.config.as_ref()?.get(key)
    }

    /// Notices for the user.
    pub fn notices(&self) -> Vec<String> {
        let prefix = self.tokenizer.as_ref().is_some_and(|tokenizer| {
            super::byte_level::is_byte_level(tokenizer) && super::pre_tokenizer::prefixes_a_space(tokenizer)
        });
        let text =
            "the tokenizer puts a space in front of a text, which llama.cpp does not: the first token may differ";
        prefix.then(|| text.to_owned()).into_iter().collect()
    }
}

/// The pieces of a SentencePiece model. If there is a tokenizer.json, a file of another kind (some are tiktoken's) is ignored.
fn pieces(path: &Path, is_optional: bool) -> Result<Option<Vec<Piece>>, TokenizerProblem> {
    if !path.is_file() {
        return Ok(None);
    }
    match read_pieces(path) {
        Err(kvant_container::Error::SentencePiece { .. }) if is_optional => Ok(None),
        other => Ok(Some(other?)),
    }
}

/// A chat template; one that is longer than any is taken for damaged, and left out rather than cut.
fn template(path: &Path) -> Option<String> {
    let mut text = String::new();
    fs::File::open(path).ok()?.take(MAX_TEMPLATE + 1).read_to_string(&mut text).ok()?;
    Some(text).filter(|text| text.len() as u64 <= MAX_TEMPLATE)
}
