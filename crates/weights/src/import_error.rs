//! Reasons that a quantized checkpoint cannot be read.

use crate::parts::CannotHold;
use crate::recipe_error::RecipeError;
use kvant_container::{Diagnostic, ErrorKind};

/// The hint for files that contradict themselves.
const DAMAGED: &str = "the checkpoint is damaged, or not what its config.json says: download it again";

/// The hint for adapters that contradict themselves or the model.
const DAMAGED_ADAPTER: &str = "the adapter is damaged, its two files are not of one training, or it was trained on another model: download both files \
     again, or name its own model";

/// An error of reading a quantized checkpoint. Names the tensor, module or field.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The contents of the checkpoint contradict its configuration.
    #[error("{place}: {reason}")]
    Invalid {
        /// The tensor, module or field.
        place: String,
        /// The problem.
        reason: String,
    },
    /// An adapter contradicts itself, or the model.
    #[error("{place}: {reason}")]
    Adapter {
        /// The adapter, or the tensor and its file.
        place: String,
        /// The problem.
        reason: String,
    },
    /// Something that is not read here.
    #[error("{place}: {reason}")]
    Unsupported {
        /// The tensor, module or field.
        place: String,
        /// The unsupported feature.
        reason: String,
        /// The remedy.
        hint: String,
    },
    /// A file is wrong.
    #[error(transparent)]
    File(#[from] kvant_container::Error),
}

impl ImportError {
    /// The contents of the checkpoint contradict its configuration.
    pub fn invalid(place: impl Into<String>, reason: impl Into<String>) -> ImportError {
        ImportError::Invalid { place: place.into(), reason: reason.into() }
    }

    /// An adapter contradicts itself, or the model.
    pub fn adapter(place: impl Into<String>, reason: impl Into<String>) -> ImportError {
        ImportError::Adapter { place: place.into(), reason: reason.into() }
    }

    /// Something that is not read.
    pub fn unsupported(place: impl Into<String>, reason: impl Into<String>, hint: impl Into<String>) -> ImportError {
        ImportError::Unsupported { place: place.into(), reason: reason.into(), hint: hint.into() }
    }

    /// The error for a missing tensor.
    pub fn missing(tensor: impl Into<String>, whose: &str) -> ImportError {
        ImportError::invalid(tensor, format!("is missing, and {whose} needs it"))
    }

    /// The refusal of a format to write a layer, met while reading one.
    pub fn cannot_hold(module: &str, error: &CannotHold) -> ImportError {
        ImportError::unsupported(module, error.reason.clone(), "dequantize the checkpoint with the tool that made it")
    }
}

impl Diagnostic for ImportError {
    fn kind(&self) -> ErrorKind {
        match self {
            ImportError::Invalid { .. } | ImportError::Adapter { .. } => ErrorKind::Invalid,
            ImportError::Unsupported { .. } => ErrorKind::Unsupported,
            ImportError::File(error) => error.kind(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            ImportError::Invalid { .. } => Some(DAMAGED.to_owned()),
            ImportError::Adapter { .. } => Some(DAMAGED_ADAPTER.to_owned()),
            ImportError::Unsupported { hint, .. } => Some(hint.clone()),
            ImportError::File(error) => error.hint(),
        }
    }
}

/// A configuration read as a description of the checkpoint, not as a recipe: only the hint differs.
impl From<RecipeError> for ImportError {
    fn from(error: RecipeError) -> ImportError {
        match error {
            RecipeError::Unsupported(problem) => {
                let place = format!("quantization_config: {}", problem.place);
                ImportError::unsupported(place, problem.reason, "dequantize the checkpoint with the tool that made it")
            }
            RecipeError::Invalid(problem) => {
                ImportError::invalid(format!("quantization_config: {}", problem.place), problem.reason)
            }
            other => ImportError::invalid("quantization_config", other.to_string()),
        }
    }
}
