//! Replaces folders of images in builds without decoders: they are refused.

use std::path::PathBuf;

use kvant_samples::SampleError;

use super::column::Column;
use super::error::DataError;
use super::inputs::Input;
use super::preprocessing::Preprocessing;

/// Refuses the files.
pub(super) fn column(_input: &Input, files: Vec<PathBuf>, _steps: Preprocessing) -> Result<Box<dyn Column>, DataError> {
    Err(SampleError::NotBuilt { file: files.into_iter().next().unwrap_or_default(), feature: "images" }.into())
}
