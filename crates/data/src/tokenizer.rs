//! The checkpoint's own tokenizer: its tokenizer.json, loaded, text turned into tokens and tokens into text. No chat templates,
//! no files of text.

use kvant_container::gguf::{self, GgufFile};
use kvant_container::{Diagnostic, ErrorKind, model_directory};
use kvant_gguf::model::restore::tokenizer_json;
use kvant_weights::import_error::ImportError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use tokenizers::{Encoding, Tokenizer, TruncationDirection};

/// Reasons that a tokenizer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The checkpoint has no tokenizer.
    #[error("{} is missing", kvant_container::shown(file))]
    Missing {
        /// The file that would hold it.
        file: PathBuf,
    },
    /// The tokenizer of a GGUF file cannot be read.
    #[error(transparent)]
    Gguf(#[from] ImportError),
    /// The file holds no tokenizer that can be loaded.
    #[error("{} holds no tokenizer that can be loaded: {message}", kvant_container::shown(file))]
    Broken {
        /// The tokenizer's file.
        file: PathBuf,
        /// The reason.
        message: String,
    },
    /// The tokenizer refuses a text.
    #[error("{}: {message}", kvant_container::shown(file))]
    Unusable {
        /// The tokenizer's file.
        file: PathBuf,
        /// Its text.
        message: String,
    },
}

impl Diagnostic for TokenizerError {
    fn kind(&self) -> ErrorKind {
        match self {
            TokenizerError::Gguf(error) => error.kind(),
            TokenizerError::Missing { .. } | TokenizerError::Broken { .. } | TokenizerError::Unusable { .. } => {
                ErrorKind::Invalid
            }
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            TokenizerError::Missing { .. } => Some("copy tokenizer.json of the model into its directory".to_owned()),
            TokenizerError::Broken { .. } => Some("copy it from the original model, or download it again".to_owned()),
            TokenizerError::Gguf(error) => error.hint(),
            TokenizerError::Unusable { .. } => None,
        }
    }
}

/// The tokenizer of a checkpoint, without the limits of length that its file may hold.
#[derive(Debug)]
pub struct ModelTokenizer {
    tokenizer: Tokenizer,
    file: PathBuf,
}

impl ModelTokenizer {
    /// Loads tokenizer.json of the checkpoint in `model`, or its equivalent in a GGUF file.
    ///
    /// # Errors
    ///
    /// Missing or unsupported files.
    pub fn open(model: &Path) -> Result<ModelTokenizer, TokenizerError> {
        if gguf::is_gguf(model) {
            let json = tokenizer_json(&GgufFile::open(model).map_err(ImportError::from)?)?;
            let loaded = guarded(|| Tokenizer::from_bytes(json.to_string()));
            return ModelTokenizer::of(loaded.map_err(broken(model))?, model);
        }
        let file = model_directory(model).join("tokenizer.json");
        if !file.is_file() {
            return Err(TokenizerError::Missing { file });
        }
        ModelTokenizer::of(guarded(|| Tokenizer::from_file(&file)).map_err(broken(&file))?, &file)
    }

    fn of(mut tokenizer: Tokenizer, file: &Path) -> Result<ModelTokenizer, TokenizerError> {
        // A tokenizer.json may hold the limits of the last call that its author made.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(broken(file))?;
        Ok(ModelTokenizer { tokenizer, file: file.to_path_buf() })
    }

    /// The tokens of a text, with the special tokens that the tokenizer adds.
    ///
    /// # Errors
    ///
    /// Texts that the tokenizer refuses, such as unknown characters where it has no token for them.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        Ok(self.encoding(text, true)?.get_ids().to_vec())
    }

    /// The tokens of a text that already contains its special tokens, such as a rendered chat template.
    ///
    /// # Errors
    ///
    /// Those of [`Self::encode`].
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        Ok(self.encoding(text, false)?.get_ids().to_vec())
    }

    /// [`Self::encode`], of which at most `longest` tokens remain: the text's own tokens are dropped from its end, the
    /// special tokens stay. That is what `truncation=True, max_length=longest` means in transformers.
    ///
    /// # Errors
    ///
    /// Those of [`Self::encode`].
    pub fn encode_truncated(&self, text: &str, longest: usize) -> Result<Vec<u32>, TokenizerError> {
        let mut encoding = self.encoding(text, false)?;
        let added = tokenizers::PostProcessor::added_tokens;
        let special = self.tokenizer.get_post_processor().map_or(0, |processor| added(processor, false));
        encoding.truncate(longest.saturating_sub(special), 0, TruncationDirection::Right);
        let whole = guarded(|| self.tokenizer.post_process(encoding, None, true)).map_err(unusable(&self.file))?;
        let mut ids = whole.get_ids().to_vec();
        // Fewer tokens than there are special ones.
        ids.truncate(longest);
        Ok(ids)
    }

    /// The text of tokens, without special ones if `skip_special`. Bytes that are no UTF-8 are replaced (U+FFFD).
    ///
    /// # Errors
    ///
    /// Those of the tokenizer's decoder.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        guarded(|| self.tokenizer.decode(tokens, skip_special)).map_err(unusable(&self.file))
    }

    /// The number of a token with this text, special or not.
    pub fn token(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text)
    }

    /// The text of a token by itself, special or not.
    pub fn text_of(&self, token: u32) -> Option<String> {
        self.tokenizer.id_to_token(token)
    }

    /// Its file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// A stream of the text behind the tokens `before`.
    pub fn stream(&self, before: &[u32]) -> TextStream<'_> {
        TextStream {
            tokenizer: self,
            tokens: before.to_vec(),
            context: before.len().saturating_sub(CONTEXT),
            shown: before.len(),
        }
    }

    fn encoding(&self, text: &str, special: bool) -> Result<Encoding, TokenizerError> {
        // Fast means: without the places of the tokens in the text.
        guarded(|| self.tokenizer.encode_fast(text, special)).map_err(unusable(&self.file))
    }
}

/// Runs code of the `tokenizers` crate, which panics at some damaged files.
fn guarded<T>(run: impl FnOnce() -> tokenizers::Result<T>) -> tokenizers::Result<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("its parts contradict each other".into()))
}

fn broken(file: &Path) -> impl Fn(tokenizers::Error) -> TokenizerError {
    let file = file.to_path_buf();
    move |error| TokenizerError::Broken { file: file.clone(), message: error.to_string() }
}

/// Tokens before a stream on which its first text may depend.
const CONTEXT: usize = 8;

/// Text that grows token by token. Characters whose bytes are spread over several tokens appear with the last of them.
#[derive(Debug)]
pub struct TextStream<'t> {
    tokenizer: &'t ModelTokenizer,
    tokens: Vec<u32>,
    /// The first token that is decoded: whether a word begins with a space depends on what is before it.
    context: usize,
    /// Tokens whose text was returned.
    shown: usize,
}

impl TextStream<'_> {
    /// The further text with one more token; empty where it has no whole character yet. Special tokens have no text.
    ///
    /// # Errors
    ///
    /// Those of [`ModelTokenizer::decode`].
    pub fn push(&mut self, token: u32) -> Result<String, TokenizerError> {
        self.tokens.push(token);
        let text = self.rest()?;
        // An unfinished character is replaced at the end, for now.
        if text.is_empty() || text.ends_with(char::REPLACEMENT_CHARACTER) {
            return Ok(String::new());
        }
        (self.context, self.shown) = (self.shown, self.tokens.len());
        Ok(text)
    }

    /// The text of tokens that ended in the middle of a character.
    ///
    /// # Errors
    ///
    /// Those of [`ModelTokenizer::decode`].
    pub fn finish(&mut self) -> Result<String, TokenizerError> {
        let text = self.rest()?;
        (self.context, self.shown) = (self.shown, self.tokens.len());
        Ok(text)
    }

    /// The text of the tokens that were not shown.
    fn rest(&self) -> Result<String, TokenizerError> {
        let before = self.tokenizer.decode(&self.tokens[self.context..self.shown], true)?;
        let all = self.tokenizer.decode(&self.tokens[self.context..], true)?;
        Ok(all.get(before.len()..).unwrap_or_default().to_owned())
    }
}

fn unusable(file: &Path) -> impl Fn(tokenizers::Error) -> TokenizerError {
    let file = file.to_path_buf();
    move |error| TokenizerError::Unusable { file: file.clone(), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `tokenizers` crate panics at decoders that are none.
    #[test]
    fn damaged_decoder_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let damaged = FRAMED.replacen('{', r#"{"decoder": 0,"#, 1);
        std::fs::write(place.path().join("tokenizer.json"), damaged).unwrap();
        let error = ModelTokenizer::open(place.path()).unwrap_err();
        assert!(matches!(&error, TokenizerError::Broken { .. }), "{error}");
    }

    /// A word-level tokenizer that puts `<s>` before and `</s>` after a text.
    const FRAMED: &str = r#"{"version": "1.0", "truncation": {"direction": "Right", "max_length": 3, "strategy":
        "LongestFirst", "stride": 0}, "padding": null, "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type":
        "Whitespace"}, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>",
        "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}], "pair":
        [{"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]},
        "</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}}, "decoder": null, "model": {"type": "WordLevel", "vocab":
        {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "c": 4}, "unk_token": "a"}}"#;

    fn framed() -> (tempfile::TempDir, ModelTokenizer) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer.json"), FRAMED).unwrap();
        let tokenizer = ModelTokenizer::open(dir.path()).unwrap();
        (dir, tokenizer)
    }

    #[test]
    fn special_tokens_are_added_once_and_survive_truncation() {
        let (_dir, tokenizer) = framed();
        assert_eq!(tokenizer.encode("a b c").unwrap(), [0, 2, 3, 4, 1]);
        assert_eq!(tokenizer.encode_rendered("a b c").unwrap(), [2, 3, 4]);
        assert_eq!(tokenizer.encode_truncated("a b c", 4).unwrap(), [0, 2, 3, 1]);
        assert_eq!(tokenizer.encode_truncated("a b c", 9).unwrap(), [0, 2, 3, 4, 1]);
        assert_eq!(tokenizer.encode_truncated("a b c", 1).unwrap(), [0]);
    }

    /// Bytes as tokens: `é` is two of them.
    const BYTES: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{"id": 4, "content":
        "<end>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "ByteLevel",
        "add_prefix_space": false, "trim_offsets": true, "use_regex": false}, "model": {"type": "WordLevel", "vocab": {"a": 0, "Ġb": 1,
        "Ã": 2, "©": 3}, "unk_token": "a"}}"#;

    #[test]
    fn text_stream_holds_back_unfinished_characters() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("tokenizer.json"), BYTES).unwrap();
        let tokenizer = ModelTokenizer::open(dir.path()).unwrap();
        let mut stream = tokenizer.stream(&[0, 1]);
        let texts: Vec<String> = [0, 2, 3, 4, 1, 2].into_iter().map(|token| stream.push(token).unwrap()).collect();
        assert_eq!(texts, ["a", "", "é", "", " b", ""]);
        assert_eq!(stream.finish().unwrap(), "\u{FFFD}");
        assert_eq!(stream.finish().unwrap(), "");
        assert_eq!(tokenizer.decode(&[0, 4, 1], true).unwrap(), "a b");
        assert_eq!(tokenizer.decode(&[0, 4, 1], false).unwrap(), "a<end> b");
        assert_eq!((tokenizer.token("<end>"), tokenizer.token("none")), (Some(4), None));
    }

    #[test]
    fn missing_and_broken_tokenizers_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = ModelTokenizer::open(dir.path()).unwrap_err();
        assert!(matches!(missing, TokenizerError::Missing { .. }) && missing.hint().is_some(), "{missing}");
        std::fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
        let broken = ModelTokenizer::open(dir.path()).unwrap_err();
        assert!(matches!(broken, TokenizerError::Broken { .. }) && broken.hint().is_some(), "{broken}");
    }
}
