//! A GGUF file seen as the checkpoint that it was made of: the way back of `kvant_checkpoint::gguf::plan`. config.json follows from the
//! metadata, names and shapes from the family's description and the file's tensors, the order of rows from the same plan that
//! writes such files. Weights stay mapped; small tensors are read at once.
//!
//! Supported are the architectures with a [`Restoration`](super::architecture::Restoration).

mod config;
mod known;
mod names;
mod rope;
mod small;
mod stated;
mod tensors;
mod tokenizer;

pub use config::Words;
pub use known::{Known, known};
pub use stated::Stated;
pub use tensors::{factors, tensors};
pub use tokenizer::{tokenizer_config, tokenizer_json};

use kvant_container::gguf::GgufFile;
use kvant_container::shown;
use kvant_container::{Checkpoint, Diagnostic, ErrorKind, Layout, TensorFile};
use kvant_weights::import_error::ImportError;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Opens a GGUF file as a checkpoint.
///
/// # Errors
/// *Unsupported* for architectures that are not read and tensors that have no place in them, *invalid* where the file
/// contradicts itself.
pub fn open(path: &Path) -> Result<Checkpoint, ImportError> {
    let file = GgufFile::open(path)?;
    let restored = config::restore(&file)?;
    let small = small::read(&file, &restored)?;
    let mut files = BTreeMap::from([("config.json".to_owned(), text(&restored.config))]);
    // A tokenizer that is not understood keeps nobody from reading the weights: see `unread_tokenizer`.
    files.extend(tokenizer::files(&file).unwrap_or_default());
    Ok(Checkpoint::of_gguf(file, small, files)?)
}

/// Opens a GGUF file as source of another one: as [`open`] does if its architecture is supported, otherwise without a model
/// behind it.
///
/// # Errors
/// As [`open`], where it is damaged.
pub fn open_any(path: &Path) -> Result<Checkpoint, ImportError> {
    match open(path) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            let file = GgufFile::open(path)?;
            let layout = Layout::new(Vec::new(), u64::MAX, BTreeMap::new()).map_err(kvant_container::Error::from)?;
            let none = TensorFile::in_memory(&layout, &[], path)?;
            Ok(Checkpoint::of_gguf(file, none, BTreeMap::new())?)
        }
        opened => opened,
    }
}

/// The notice about a tokenizer that could not be restored; `None` if it was restored, and for other
/// checkpoints.
pub fn unread_tokenizer(checkpoint: &Checkpoint) -> Option<String> {
    let file = checkpoint.gguf().filter(|_| checkpoint.made_files().all(|(name, _)| name != "tokenizer.json"))?;
    let reason = tokenizer_json(file).err()?;
    Some(format!("the tokenizer in {} is left out: {reason}", shown(file.path())))
}

fn text(json: &Value) -> Vec<u8> {
    kvant_container::python_json::to_text(json).map(String::into_bytes).unwrap_or_default()
}
