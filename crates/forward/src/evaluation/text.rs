//! From a text file to tokens, with the checkpoint's own tokenizer.

use super::EvaluationError;
use kvant_data::tokenizer::ModelTokenizer;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The tokens of a text as the tokenizer of the checkpoint in `model` makes them: the whole text at once, with the
/// special tokens that it adds.
///
/// # Errors
///
/// Files that are missing, unreadable or not UTF-8, and tokenizers that are not understood.
pub fn tokenize(model: &Path, text: &Path) -> Result<Vec<u32>, EvaluationError> {
    let tokenizer = ModelTokenizer::open(model)?;
    refuse_other_form(text)?;
    Ok(tokenizer.encode(&read_text(text)?)?)
}

/// Ends of names of files that hold text in another form, which would be taken for the text.
const OTHERS: &[&str] = &["json", "jsonl", "ndjson", "parquet", "npy", "safetensors", "gz", "zst"];

/// Refuses a file whose name or beginning shows that it is no text to evaluate on.
///
/// # Errors
/// As [`tokenize`].
pub fn check_text(file: &Path) -> Result<(), EvaluationError> {
    refuse_other_form(file)?;
    let unreadable = |cause| EvaluationError::Read { file: file.to_path_buf(), cause };
    let mut bytes = Vec::new();
    File::open(file).and_then(|opened| opened.take(BEGINNING).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.is_empty() {
        return Err(EvaluationError::TooShort { tokens: 0, window: 2 });
    }
    match std::str::from_utf8(&bytes) {
        // A character may be cut where the beginning ends.
        Err(error) if error.error_len().is_some() || (bytes.len() as u64) < BEGINNING => {
            Err(EvaluationError::NotText { file: file.to_path_buf(), position: error.valid_up_to() })
        }
        _ => Ok(()),
    }
}

/// Bytes that [`check_text`] looks at.
const BEGINNING: u64 = 64 << 10;

fn refuse_other_form(file: &Path) -> Result<(), EvaluationError> {
    let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase();
    match OTHERS.contains(&extension.as_str()) {
        true => Err(EvaluationError::OtherForm { file: file.to_path_buf() }),
        false => Ok(()),
    }
}

/// All of a file of text in UTF-8.
///
/// # Errors
///
/// Files that are unreadable or not UTF-8.
pub fn read_text(file: &Path) -> Result<String, EvaluationError> {
    let bytes = std::fs::read(file).map_err(|cause| EvaluationError::Read { file: file.to_path_buf(), cause })?;
    String::from_utf8(bytes).map_err(|error| EvaluationError::NotText {
        file: file.to_path_buf(),
        position: error.utf8_error().valid_up_to(),
    })
}
