//! Failures of an algorithm.

use kvant_container::{Diagnostic, ErrorKind, Remedy};

use super::CalibrationError;
use crate::data::DataError;
use crate::runtime::RuntimeError;

/// A failure of an algorithm, with the layer it is about.
#[derive(Debug, thiserror::Error)]
pub enum AlgorithmError {
    /// The data (*invalid*).
    #[error("{0}")]
    Data(#[from] DataError),
    /// The engine or the model.
    #[error("{0}")]
    Runtime(#[from] RuntimeError),
    /// A run over the samples.
    #[error("{0}")]
    Calibration(#[from] CalibrationError),
    /// Activations could not be kept.
    #[error("cannot keep activations in a temporary file: {0}")]
    Store(#[from] std::io::Error),
    /// A result could not be kept for a run that resumes.
    #[error("cannot store results next to the output: {0}")]
    Keep(std::io::Error),
    /// The algorithm needs data, and there are none (*invalid*).
    #[error("the algorithm {0} needs calibration data")]
    NoData(String),
    /// The layout has no place for what the algorithm finds (*unsupported*).
    #[error("the algorithm {algorithm} does nothing for this layout: {reason}")]
    NotInLayout {
        /// The algorithm.
        algorithm: String,
        /// The reason.
        reason: &'static str,
    },
    /// A layer cannot be worked on (*invalid*).
    #[error("the layer `{layer}`: {problem}")]
    Layer {
        /// The node.
        layer: String,
        /// The problem.
        problem: String,
    },
    /// The user asked to stop.
    #[error("stopped while an algorithm was at work")]
    Cancelled,
}

impl Diagnostic for AlgorithmError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Data(error) => error.kind(),
            Self::Runtime(error) => error.kind(),
            Self::Calibration(error) => error.kind(),
            Self::Store(_) | Self::Keep(_) => ErrorKind::Io,
            Self::NoData(_) | Self::Layer { .. } => ErrorKind::Invalid,
            Self::NotInLayout { .. } => ErrorKind::Unsupported,
            Self::Cancelled => ErrorKind::Cancelled,
        }
    }

    fn remedies(&self) -> Vec<Remedy> {
        match self {
            Self::NoData(_) => vec![Remedy::GiveSamples],
            Self::NotInLayout { .. } => vec![
                Remedy::leave_out("algorithm"),
                Remedy::UseScheme("choose another preset with ‹scheme›".to_owned()),
                Remedy::command("list algorithms", "says what each is for"),
            ],
            Self::Layer { layer, .. } => {
                vec![Remedy::ExcludeLayer(layer.clone()), Remedy::leave_out("algorithm")]
            }
            error => Remedy::of_hint(error.hint()),
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Data(error) => return error.hint(),
            Self::Runtime(error) => return error.hint(),
            Self::Calibration(error) => return error.hint(),
            Self::Store(_) => "make room in the temporary directory, or give fewer samples",
            Self::Keep(_) => "make room next to the output, or choose another place with ‹output›",
            Self::NoData(_) => "give samples with ‹data›: an .npz with one array for each input, a folder, or `random`",
            Self::NotInLayout { .. } => {
                "leave the algorithm out, or choose another preset: `kvant list algorithms` says what each is for"
            }
            Self::Layer { .. } => "exclude the node with ‹exclude›, or leave the algorithm out",
            Self::Cancelled => return None,
        };
        Some(hint.to_owned())
    }
}
