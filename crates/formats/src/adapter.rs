//! A checkpoint opened with LoRA adapters, which `lora` merges into its weights as these are read.

use crate::import;
use crate::lora;
use kvant_container::{AdapterSource, Checkpoint};
use kvant_weights::import_error::ImportError;
use std::path::PathBuf;

/// A checkpoint with the adapters in some folders, merged in this order.
///
/// # Errors
/// *Invalid* for tensors that fit no weight of the model, *unsupported* for adapters of other kinds; both name tensor or field.
pub fn open(model: Checkpoint, folders: &[PathBuf]) -> Result<Checkpoint, ImportError> {
    if folders.is_empty() {
        return Ok(model);
    }
    if model.gguf().is_some() {
        let hint = "merge it into the model that it was trained on, whose weights are safetensors";
        return Err(ImportError::unsupported("‹lora›", "adapters are not merged into GGUF files", hint));
    }
    let adapters = folders.iter().map(|folder| AdapterSource::open(folder)).collect::<Result<Vec<_>, _>>()?;
    let replaced = {
        let tensors = import::open(&model)?.into_tensors();
        lora::checked(&model, &adapters, &tensors)?
    };
    Ok(model.with_adapters(adapters, replaced))
}
