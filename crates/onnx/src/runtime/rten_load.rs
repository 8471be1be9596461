//! Loading a model into rten: from bytes where it is small, mapped where it is not. Its call for maps is marked unsafe, because
//! files may change below a map.
#![allow(unsafe_code)]

use std::path::Path;

use kvant_container::onnx::ModelProto;
use rten::{Model, ModelOptions};
use tempfile::TempDir;

use super::error::RuntimeError;
use super::model_file::{MAPS_NEED_NAMES, ModelFile};

/// The model, and the directory it is mapped from where that must stay.
pub(super) fn load(
    options: &ModelOptions,
    model: ModelProto,
    scratch: Option<&Path>,
) -> Result<(Model, Option<TempDir>), RuntimeError> {
    let refused = |e: rten::LoadError| RuntimeError::Load { engine: "rten".to_owned(), problem: e.to_string() };
    match ModelFile::new(model, scratch)? {
        ModelFile::Bytes(bytes) => Ok((options.load(bytes).map_err(refused)?, None)),
        ModelFile::File { path, directory } => {
            // SAFETY: the files were written just now to a directory of our own, readable by this user only, and nobody
            // changes them. That is the condition of `kvant_container::MappedFile` as well.
            let model = unsafe { options.load_mmap(&path) }.map_err(refused)?;
            Ok((model, MAPS_NEED_NAMES.then_some(directory)))
        }
    }
}
