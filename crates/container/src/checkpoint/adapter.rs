//! An adapter: a folder with weights trained on top of a model. Lists its tensors and configuration; what
//! they mean is not known here.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Checkpoint, MAX_CONFIG_LEN};
use crate::directory::model_directory;
use crate::error::CheckpointError;
use crate::error::Error;
use crate::json::read_python_json;
use crate::tensor_file::{TensorFile, TensorView};

pub(super) const ADAPTER_CONFIG: &str = "adapter_config.json";
pub(super) const ADAPTER_WEIGHTS: &str = "adapter_model.safetensors";
const ADAPTER_PICKLE: &str = "adapter_model.bin";

/// Parts of names that only tensors of adapters have.
const MARKS: &[&str] = &[".lora_A", ".lora_B", ".lora_embedding_", ".lora_down.", ".lora_up."];

/// An adapter, opened: its header checked, no tensor read.
#[derive(Debug)]
pub struct AdapterSource {
    path: PathBuf,
    config: Value,
    file: TensorFile,
}

impl AdapterSource {
    /// Opens the folder of an adapter, or its file of weights.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is none or its weights are a pickle; errors of its files.
    pub fn open(path: &Path) -> Result<AdapterSource, Error> {
        let directory = model_directory(path);
        let wrong = |problem| Error::Checkpoint { path: path.to_path_buf(), problem };
        let (config, weights) = (directory.join(ADAPTER_CONFIG), directory.join(ADAPTER_WEIGHTS));
        let missing = [(&config, ADAPTER_CONFIG), (&weights, ADAPTER_WEIGHTS)];
        let missing = missing.into_iter().find(|(file, _)| !file.is_file()).map(|(_, name)| name);
        match missing {
            _ if !path.exists() => return Err(wrong(CheckpointError::NotFound)),
            Some(ADAPTER_WEIGHTS) if directory.join(ADAPTER_PICKLE).is_file() => {
                return Err(wrong(CheckpointError::AdapterPickle { file: directory.join(ADAPTER_PICKLE) }));
            }
            Some(file) => return Err(wrong(CheckpointError::NoAdapter { missing: file })),
            None => {}
        }
        let config = read_python_json(&config, MAX_CONFIG_LEN)?;
        Ok(AdapterSource { path: directory.to_path_buf(), config, file: TensorFile::open(&weights)? })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// adapter_config.json.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The tensors.
    pub fn file(&self) -> &TensorFile {
        &self.file
    }
}

/// Tensors that take the place of those of the same names.
#[derive(Debug)]
pub(super) struct Replaced {
    file: TensorFile,
    positions: HashMap<String, usize>,
}

impl Replaced {
    pub(super) fn of(file: TensorFile) -> Replaced {
        let positions = file.tensors().enumerate().map(|(at, tensor)| (tensor.name().to_owned(), at)).collect();
        Replaced { file, positions }
    }

    /// The tensor that takes the place of the one of this name, if any does.
    pub(super) fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.file.get(*self.positions.get(name)?)
    }
}

impl Checkpoint {
    /// The checkpoint with adapters, which whoever reads its weights merges into them. `replaced` holds small tensors that take the
    /// place of those of the same names.
    pub fn with_adapters(self, adapters: Vec<AdapterSource>, replaced: TensorFile) -> Checkpoint {
        Checkpoint { adapters, replaced: Some(Replaced::of(replaced)), ..self }
    }

    /// The adapters that are to be merged, in this order.
    pub fn adapters(&self) -> &[AdapterSource] {
        &self.adapters
    }
}

/// Refuses files that contain only an adapter: quantized adapter weights are not a model. Models that hold adapters beside their
/// weights are accepted.
pub(super) fn refuse_alone(path: &Path, shards: &[TensorFile]) -> Result<(), Error> {
    let is_mark = |name: &str| MARKS.iter().any(|mark| name.contains(mark));
    let names = || shards.iter().flat_map(TensorFile::tensors).map(|tensor| tensor.name());
    let is_all = names().any(is_mark) && names().all(|name| is_mark(name) || name.ends_with(".alpha"));
    let is_named = || shards.iter().all(|shard| shard.path().file_name().is_some_and(|name| name == ADAPTER_WEIGHTS));
    let config = model_directory(path).join(ADAPTER_CONFIG);
    if !(is_all || is_named() && config.is_file()) {
        return Ok(());
    }
    let stated = if config.is_file() { read_python_json(&config, MAX_CONFIG_LEN).ok() } else { None };
    let base = stated.and_then(|config| Some(config.get("base_model_name_or_path")?.as_str()?.to_owned()));
    let problem = CheckpointError::Adapter { base };
    Err(Error::Checkpoint { path: path.to_path_buf(), problem })
}
