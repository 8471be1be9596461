//! From a text file to tokens, with the checkpoint's own tokenizer.

use super::EvaluationError;
use crate::tokenizer::ModelTokenizer;
use std::path::Path;

/// The tokens of a text as the tokenizer of the checkpoint in `model` makes them: the whole text at once, with the
/// special tokens that it adds.
///
/// # Errors
///
/// Files that are missing, unreadable or not UTF-8, and tokenizers that are not understood.
pub fn tokenize(model: &Path, text: &Path) -> Result<Vec<u32>, EvaluationError> {
    let tokenizer = ModelTokenizer::open(model)?;
    Ok(tokenizer.encode(&read_text(text)?)?)
}

/// Ends of names of files that hold text in another form, which would be taken for the text.
const OTHERS: &[&str] = &["json", "jsonl", "ndjson", "parquet", "npy", "safetensors", "gz", "zst"];

fn read_text(file: &Path) -> Result<String, EvaluationError> {
    let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase();
    if OTHERS.contains(&extension.as_str()) {
        return Err(EvaluationError::OtherForm { file: file.to_path_buf() });
    }
    let bytes = std::fs::read(file).map_err(|cause| EvaluationError::Read { file: file.to_path_buf(), cause })?;
    String::from_utf8(bytes).map_err(|error| EvaluationError::NotText {
        file: file.to_path_buf(),
        position: error.utf8_error().valid_up_to(),
    })
}
