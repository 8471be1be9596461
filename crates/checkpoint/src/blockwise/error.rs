//! Failures of a calibrated run.

use crate::engine::EngineError;
use kvant_container::{Diagnostic, ErrorKind, Remedy};
use kvant_forward::forward::ForwardError;
use kvant_numeric::linalg::Precision;
use std::io;

/// See the variants.
#[derive(Debug, thiserror::Error)]
pub enum BlockwiseError {
    /// The model cannot be run, or not on these data.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// A weight cannot be quantized, the output cannot be written, or the user asked to stop.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The input of a layer is NaN or infinite (*invalid*: the model).
    #[error("block {block}: what `{layer}` reads holds NaN or infinite values")]
    NotFinite {
        /// The block.
        block: usize,
        /// The layer.
        layer: String,
        /// The precision of activations.
        precision: Precision,
    },
    /// A layer was left out: a fault of Kvant's.
    #[error("`{layer}` was not written with its block")]
    Unfinished {
        /// The layer.
        layer: String,
    },
    /// The files between blocks.
    #[error("cannot {action} the activations between blocks: {cause}")]
    Streams {
        /// The attempted operation, as a verb.
        action: &'static str,
        /// The system's answer.
        cause: io::Error,
    },
}

impl BlockwiseError {
    pub(super) fn streams(action: &'static str) -> impl FnOnce(io::Error) -> BlockwiseError {
        move |cause| BlockwiseError::Streams { action, cause }
    }
}

impl Diagnostic for BlockwiseError {
    fn kind(&self) -> ErrorKind {
        match self {
            BlockwiseError::Forward(error) => error.kind(),
            BlockwiseError::Engine(error) => error.kind(),
            BlockwiseError::NotFinite { .. } => ErrorKind::Invalid,
            BlockwiseError::Streams { .. } | BlockwiseError::Unfinished { .. } => ErrorKind::Io,
        }
    }

    fn remedies(&self) -> Vec<Remedy> {
        match self {
            BlockwiseError::Engine(error) if !matches!(error, EngineError::Weight { .. }) => error.remedies(),
            BlockwiseError::NotFinite { precision: Precision::Bf16, .. } => {
                let text = "activations may overflow in this precision: calibrate with ‹precision› f32";
                vec![Remedy::setting_to("precision", "f32", text)]
            }
            error => Remedy::of_hint(error.hint()),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            BlockwiseError::Forward(error) => error.hint(),
            // An excluded layer still runs, and later layers read its output.
            BlockwiseError::Engine(EngineError::Weight { .. }) => Some(
                "download the file again, or make it again from the original model; without an algorithm the layer can be left \
                 as it is with ‹exclude›"
                    .to_owned(),
            ),
            BlockwiseError::Engine(error) => error.hint(),
            BlockwiseError::NotFinite { precision: Precision::Bf16, .. } => {
                Some("activations may overflow in this precision: calibrate with ‹precision› f32".to_owned())
            }
            BlockwiseError::NotFinite { .. } => Some(
                "a weight of this block or of one before it is damaged: `kvant verify` finds those that hold NaN or infinity, \
                 and `kvant eval` shows whether the model computes anything"
                    .to_owned(),
            ),
            BlockwiseError::Unfinished { .. } => {
                Some("layers that share a scale must be in one block: ‹exclude› them".to_owned())
            }
            BlockwiseError::Streams { cause, .. } if cause.kind() == io::ErrorKind::FileTooLarge => {
                Some("raise the limit on the size of files (ulimit -f), or calibrate with less data".to_owned())
            }
            BlockwiseError::Streams { .. } => {
                Some("they are stored next to the output: free some space there, or calibrate with less data".to_owned())
            }
        }
    }
}
