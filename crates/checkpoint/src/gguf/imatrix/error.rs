//! Failures of reading, writing or measuring the importance of inputs.

use kvant_container::{Diagnostic, ErrorKind, io_hint};
use kvant_forward::forward::ForwardError;
use std::io;
use std::path::PathBuf;

/// The reason that there is none.
#[derive(Debug, thiserror::Error)]
pub enum ImatrixError {
    /// A file.
    #[error(transparent)]
    Container(#[from] kvant_container::Error),
    /// The model cannot be run.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// It is not a file of this kind, or damaged (*invalid*).
    #[error("{}: {reason}", kvant_container::shown(file))]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The problem.
        reason: String,
    },
    /// It cannot be written.
    #[error("cannot write {}: {cause}", kvant_container::shown(file))]
    Write {
        /// The file.
        file: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
    /// A layer reads NaN or infinite values (*invalid*: the model, or its precision).
    #[error("what `{tensor}` reads holds NaN or infinite values")]
    NotFinite {
        /// The tensor of the file.
        tensor: String,
    },
    /// It was asked to stop.
    #[error("stopped")]
    Cancelled,
}

impl Diagnostic for ImatrixError {
    fn kind(&self) -> ErrorKind {
        match self {
            ImatrixError::Container(error) => error.kind(),
            ImatrixError::Forward(error) => error.kind(),
            ImatrixError::Damaged { .. } | ImatrixError::NotFinite { .. } => ErrorKind::Invalid,
            ImatrixError::Write { .. } => ErrorKind::Io,
            ImatrixError::Cancelled => ErrorKind::Cancelled,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            ImatrixError::Container(error) => error.hint(),
            ImatrixError::Forward(error) => error.hint(),
            ImatrixError::Damaged { .. } => {
                Some("make it again with llama-imatrix, or measure with ‹algorithm› imatrix ‹calib› FILE".to_owned())
            }
            ImatrixError::NotFinite { .. } => Some(
                "the checkpoint may be damaged, or overflow in this precision: `kvant eval` shows whether it computes \
                 anything; calibrate with ‹precision› f32"
                    .to_owned(),
            ),
            ImatrixError::Write { cause, .. } => io_hint(cause).map(str::to_owned),
            ImatrixError::Cancelled => None,
        }
    }
}
