//! A model on its way to an engine: as bytes where it is small, as files the engine can map where it is not.

use std::path::{Path, PathBuf};

use kvant_container::onnx::{ExternalData, GraphProto, ModelProto, OnnxError, serialize, write};
use tempfile::TempDir;

use super::error::RuntimeError;

/// From this many bytes of tensors on, an engine is given files: their data it maps, where bytes it would copy.
const LARGE: usize = 32 << 20;

/// Whether a mapped file must keep its name. On Unix the map alone keeps the contents, and the files are removed as soon as they
/// are mapped: whatever ends the process, nothing stays behind.
pub(super) const MAPS_NEED_NAMES: bool = !cfg!(unix);

/// A model in the form an engine loads.
pub(super) enum ModelFile {
    Bytes(Vec<u8>),
    /// The model's file in a directory that lives as long as this.
    File {
        path: PathBuf,
        directory: TempDir,
    },
}

impl ModelFile {
    /// Bytes, or files in a new directory below `scratch`.
    pub fn new(model: ModelProto, scratch: Option<&Path>) -> Result<Self, RuntimeError> {
        if tensor_bytes(&model) < LARGE {
            let named = |problem: OnnxError| kvant_container::Error::Onnx { file: "model.onnx".into(), problem };
            return Ok(Self::Bytes(serialize(&model).map_err(named)?));
        }
        let scratch = scratch.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let directory = tempfile::Builder::new().prefix(".kvant-model-").tempdir_in(&scratch);
        let directory = directory.map_err(|e| RuntimeError::Library {
            path: scratch,
            problem: format!("no directory for the model: {e}"),
        })?;
        let path = directory.path().join("model.onnx");
        write(model, &path, ExternalData::Always)?;
        Ok(Self::File { path, directory })
    }
}

/// Bytes of the tensors of a model's main graph: an engine's memory for them.
pub(super) fn tensor_bytes(model: &ModelProto) -> usize {
    let raw = |graph: &GraphProto| -> usize {
        graph.initializer.iter().filter_map(|t| t.raw_data.as_ref()).map(|b| b.len()).sum()
    };
    model.graph.as_ref().map_or(0, raw)
}
