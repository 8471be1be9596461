//! Failures of calibration.

use kvant_container::{Diagnostic, ErrorKind};

use crate::data::DataError;
use crate::runtime::RuntimeError;

/// Failures of calibration.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// The data.
    #[error("{0}")]
    Data(#[from] DataError),
    /// The engine or the model.
    #[error("{0}")]
    Runtime(#[from] RuntimeError),
    /// The engine fails on a sample.
    #[error("sample {sample} of the data: {cause}")]
    Sample {
        /// Its number, from 0.
        sample: usize,
        /// The largest values of its integer inputs, each in words.
        largest: Vec<String>,
        /// The error of the engine.
        cause: Box<RuntimeError>,
    },
    /// A fault of this program, or of a library in it.
    #[error("a thread panicked while the model ran over calibration data: {0}")]
    Panicked(String),
    /// The user asked to stop.
    #[error("stopped while the model ran over calibration data")]
    Cancelled,
}

impl Diagnostic for CalibrationError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Data(error) => error.kind(),
            Self::Runtime(error) => error.kind(),
            Self::Sample { cause, .. } => cause.kind(),
            Self::Panicked(_) => ErrorKind::Internal,
            Self::Cancelled => ErrorKind::Cancelled,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Data(error) => error.hint(),
            Self::Runtime(error) => error.hint(),
            Self::Sample { largest, cause, .. } if largest.is_empty() => cause.hint(),
            Self::Sample { largest, .. } => {
                let largest = largest.join(", ");
                Some(format!(
                    "its integer inputs have {largest}; an index, such as a token id, must be below the rows of its table"
                ))
            }
            Self::Panicked(_) | Self::Cancelled => None,
        }
    }
}
