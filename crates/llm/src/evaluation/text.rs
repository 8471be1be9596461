//! From a text file to tokens, with the checkpoint's own tokenizer.

use super::EvaluationError;
use std::path::Path;
use tokenizers::Tokenizer;

/// The tokens of a text as the tokenizer of the checkpoint in `model` makes them: the whole text at once, with the
/// special tokens that it adds.
///
/// # Errors
///
/// Files that are missing, unreadable or not UTF-8, and tokenizers that are not understood.
pub fn tokenize(model: &Path, text: &Path) -> Result<Vec<u32>, EvaluationError> {
    let file = model.join("tokenizer.json");
    if !file.is_file() {
        return Err(EvaluationError::NoTokenizer { file });
    }
    let text = read_text(text)?;
    let broken =
        |error: tokenizers::Error| EvaluationError::Tokenizer { file: file.clone(), message: error.to_string() };
    let mut tokenizer = Tokenizer::from_file(&file).map_err(broken)?;
    // A tokenizer.json may hold the limits of the last call that its author made.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(broken)?;
    let encoding = tokenizer.encode(text, true).map_err(broken)?;
    Ok(encoding.get_ids().to_vec())
}

fn read_text(file: &Path) -> Result<String, EvaluationError> {
    let bytes = std::fs::read(file).map_err(|cause| EvaluationError::Read { file: file.to_path_buf(), cause })?;
    String::from_utf8(bytes).map_err(|error| EvaluationError::NotText {
        file: file.to_path_buf(),
        position: error.utf8_error().valid_up_to(),
    })
}
