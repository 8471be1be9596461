//! Failures of learning a rotation.

use crate::calibration::CalibrationError;
use kvant_container::{Diagnostic, ErrorKind, Remedy};
use kvant_forward::forward::ForwardError;
use kvant_quant::activation::ActivationError;
use kvant_quant::rounding::RoundingError;
use std::io;

/// See the variants.
#[derive(Debug, thiserror::Error)]
pub enum LearnedRotationError {
    /// The model cannot be run, or not on these data.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// Scales of inputs cannot be found.
    #[error(transparent)]
    Calibration(#[from] CalibrationError),
    /// A weight of the rotated model has values that have no codes.
    #[error("`{layer}` cannot be rounded: {cause}")]
    Rounding {
        /// The layer.
        layer: String,
        /// The reason.
        cause: RoundingError,
    },
    /// What a layer reads cannot be rounded.
    #[error("inputs of `{layer}` cannot be rounded: {cause}")]
    Inputs {
        /// The layer.
        layer: String,
        /// The reason.
        cause: ActivationError,
    },
    /// There is nothing to learn from (*invalid*: the data).
    #[error("there are no sequences to learn the rotation from")]
    NoSequences,
    /// The loss is NaN or infinite (*invalid*: the model).
    #[error("the divergence of the rotated and rounded model from the float model is {0}")]
    NotFinite(f64),
    /// The file of what was learned.
    #[error("cannot keep the learned rotation: {0}")]
    Kept(io::Error),
    /// The user asked to stop.
    #[error("stopped")]
    Cancelled,
}

impl Diagnostic for LearnedRotationError {
    fn kind(&self) -> ErrorKind {
        match self {
            LearnedRotationError::Forward(error) => error.kind(),
            LearnedRotationError::Calibration(error) => error.kind(),
            LearnedRotationError::Inputs { cause, .. } if cause.is_unsupported() => ErrorKind::Unsupported,
            LearnedRotationError::Rounding { .. }
            | LearnedRotationError::Inputs { .. }
            | LearnedRotationError::NoSequences
            | LearnedRotationError::NotFinite(_) => ErrorKind::Invalid,
            LearnedRotationError::Kept(_) => ErrorKind::Io,
            LearnedRotationError::Cancelled => ErrorKind::Cancelled,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            LearnedRotationError::Forward(error) => error.hint(),
            LearnedRotationError::Calibration(error) => error.hint(),
            _ => Remedy::hint(&self.remedies()),
        }
    }

    fn remedies(&self) -> Vec<Remedy> {
        match self {
            LearnedRotationError::Forward(error) => error.remedies(),
            LearnedRotationError::Calibration(error) => error.remedies(),
            LearnedRotationError::Rounding { .. } | LearnedRotationError::NotFinite(_) => vec![download_again()],
            LearnedRotationError::Inputs { .. } | LearnedRotationError::NoSequences => vec![without_steps()],
            LearnedRotationError::Kept(_) | LearnedRotationError::Cancelled => Vec::new(),
        }
    }
}

/// What `rotate` without steps would not help against: in the weights are values that are no numbers.
fn download_again() -> Remedy {
    Remedy::text("a weight of the model, or of a norm before the layer, is NaN or infinite: download the model again")
}

/// The way to do without.
fn without_steps() -> Remedy {
    Remedy::setting("algorithm", "give `rotate` without steps, whose matrices need no data")
}
