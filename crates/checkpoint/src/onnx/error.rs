//! The reasons that a decoder cannot become an ONNX graph.

use kvant_container::{Diagnostic, ErrorKind};
use kvant_forward::forward::ForwardError;
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
        /// The reason.
        cause: SchemeError,
    },
    /// A weight or a scale is NaN or infinite.
    #[error("layer `{layer}`: {what} is not finite")]
    NotFinite {
        /// The layer.
        layer: String,
        /// A weight, or a scale.
        what: &'static str,
    },
    /// No operator and no loader has codes of a layer's weight.
    #[error("layer `{layer}`: an ONNX graph cannot store codes of `{scheme}`")]
    Weight {
        /// The layer.
        layer: String,
        /// The scheme.
        scheme: String,
    },
    /// The activations of a layer are quantized in a way that has no nodes.
    #[error("layer `{layer}`: an ONNX graph has no nodes that quantize an {side} as `{scheme}`")]
    Activations {
        /// The layer.
        layer: String,
        /// `input` or `output`.
        side: &'static str,
        /// The scheme.
        scheme: String,
    },
    /// The KV cache or attention is quantized.
    #[error("an ONNX graph keeps keys, values and queries in float, and here attention is quantized")]
    Attention,
    /// A rule of the model has no graph yet.
    #[error("Kvant cannot write an ONNX graph of a model with {what}")]
    Unsupported {
        /// The rule, and where it stands.
        what: String,
    },
}

impl OnnxExportError {
    pub(super) fn unsupported(what: impl Into<String>) -> OnnxExportError {
        OnnxExportError::Unsupported { what: what.into() }
    }
}

impl Diagnostic for OnnxExportError {
    fn kind(&self) -> ErrorKind {
        match self {
            OnnxExportError::Forward(error) => error.kind(),
            OnnxExportError::File(error) => error.kind(),
            OnnxExportError::Codes { .. } | OnnxExportError::NotFinite { .. } => ErrorKind::Invalid,
            OnnxExportError::Weight { .. }
            | OnnxExportError::Activations { .. }
            | OnnxExportError::Attention
            | OnnxExportError::Unsupported { .. } => ErrorKind::Unsupported,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            OnnxExportError::Forward(error) => error.hint(),
            OnnxExportError::File(error) => error.hint(),
            OnnxExportError::Codes { .. } | OnnxExportError::NotFinite { .. } => {
                Some("`kvant verify` shows what is wrong with the checkpoint".to_owned())
            }
            OnnxExportError::Weight { .. } => Some(
                "choose another scheme, such as int8:channel or int4:g32; ‹format› fake writes floats for evaluation".to_owned(),
            ),
            OnnxExportError::Activations { .. } => Some(
                "‹weights-only› writes the quantized weights and leaves activations in float; graphs hold static int8, int16 and fp8 \
                 (`int8:tensor!static`), and dynamic uint8 (`uint8:tensor:zp!dynamic`)"
                    .to_owned(),
            ),
            OnnxExportError::Attention => Some(
                "leave ‹kv-cache› and ‹attention› out; of a checkpoint that has them, `kvant convert ‹weights-only›` writes the weights"
                    .to_owned(),
            ),
            OnnxExportError::Unsupported { .. } => {
                Some("choose another format (`kvant list formats`)".to_owned())
            }
        }
    }
}
