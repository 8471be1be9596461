//! The reasons that static scales cannot be found.

use kvant_container::{Diagnostic, ErrorKind};
use kvant_forward::forward::ForwardError;
use kvant_quant::activation::ActivationError;
use kvant_weights::activation_point::ActivationPoint;

/// The reason that statistics cannot be gathered, or that no parameters follow from them.
#[derive(Debug, thiserror::Error)]
pub enum CalibrationError {
    /// The scheme of a place has no statistic (*unsupported*).
    #[error("{site}: {problem}")]
    Scheme {
        /// The place.
        site: ActivationPoint,
        /// The reason.
        problem: ActivationError,
    },
    /// The model cannot be run, or not on these data.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// It was asked to stop.
    #[error("stopped")]
    Cancelled,
    /// Neither a point nor its group was observed (*invalid*: the data).
    #[error("no activations of {0} were seen")]
    Unobserved(ActivationPoint),
    /// Too many activations of a place were NaN or infinite for a range (*invalid*: the model).
    #[error("{count} activations of {site}, over {tokens} tokens, are NaN or infinite")]
    NotFinite {
        /// The place.
        site: ActivationPoint,
        /// Their number.
        count: u64,
        /// Tokens that the place saw.
        tokens: u64,
    },
    /// A point needs a scale beyond the range of its stored type (*unsupported* by the format).
    #[error("the activations of {site} need a scale of {scale:e}, beyond what its type in the output holds")]
    TooLarge {
        /// The place.
        site: ActivationPoint,
        /// The scale.
        scale: f32,
    },
    /// The statistics lack a place of the plan (*invalid*).
    #[error("the statistics have nothing of {0}")]
    Missing(ActivationPoint),
}

impl Diagnostic for CalibrationError {
    fn kind(&self) -> ErrorKind {
        match self {
            CalibrationError::Forward(error) => error.kind(),
            CalibrationError::Cancelled => ErrorKind::Cancelled,
            CalibrationError::Scheme { .. } | CalibrationError::TooLarge { .. } => ErrorKind::Unsupported,
            CalibrationError::Unobserved(_) | CalibrationError::NotFinite { .. } | CalibrationError::Missing(_) => {
                ErrorKind::Invalid
            }
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            CalibrationError::Scheme { problem, .. } => problem.hint(),
            CalibrationError::Forward(error) => return error.hint(),
            CalibrationError::Cancelled => return None,
            CalibrationError::Unobserved(_) => "calibrate with more or other data",
            CalibrationError::NotFinite { .. } => {
                "the checkpoint may be damaged: `kvant eval` shows whether it computes anything"
            }
            CalibrationError::TooLarge { .. } => {
                "quantize these activations with another scale type, or keep them in float"
            }
            CalibrationError::Missing(_) => "calibrate again: the statistics are of another plan",
        };
        Some(hint.to_owned())
    }
}
