//! What keeps a decoder from becoming an ONNX graph.

use crate::forward::ForwardError;
use kvant_container::ErrorKind;
use kvant_quant::scheme::SchemeError;

/// An error of the export.
#[derive(Debug, thiserror::Error)]
pub enum OnnxExportError {
    /// The decoder is not understood.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// A file.
    #[error(transparent)]
    File(#[from] kvant_container::Error),
    /// The stored codes of a layer are not what its scheme says.
    #[error("layer `{layer}`: {cause}")]
    Codes {
        /// The layer.
        layer: String,
        /// Why.
        cause: SchemeError,
    },
    /// A weight or a scale is no number.
    #[error("layer `{layer}`: {what} is no finite number")]
    NotFinite {
        /// The layer.
        layer: String,
        /// A weight, or a scale.
        what: &'static str,
    },
    /// A rule of the model has no graph yet.
    #[error("the ONNX export has no {what}")]
    Unsupported {
        /// The rule, and where it stands.
        what: String,
    },
}

impl OnnxExportError {
    pub(super) fn unsupported(what: impl Into<String>) -> OnnxExportError {
        OnnxExportError::Unsupported { what: what.into() }
    }

    /// Whether the input is wrong, or only not supported.
    pub fn kind(&self) -> ErrorKind {
        match self {
            OnnxExportError::Forward(error) => error.kind(),
            OnnxExportError::File(error) => error.kind(),
            OnnxExportError::Codes { .. } | OnnxExportError::NotFinite { .. } => ErrorKind::Invalid,
            OnnxExportError::Unsupported { .. } => ErrorKind::Unsupported,
        }
    }

    /// The way out.
    pub fn hint(&self) -> Option<String> {
        match self {
            OnnxExportError::Forward(error) => error.hint(),
            OnnxExportError::File(error) => error.hint(),
            OnnxExportError::Codes { .. } | OnnxExportError::NotFinite { .. } => {
                Some("`kvant verify` tells what is wrong with the checkpoint".to_owned())
            }
            OnnxExportError::Unsupported { .. } => {
                Some("convert to another format: `kvant list formats` names them".to_owned())
            }
        }
    }
}
