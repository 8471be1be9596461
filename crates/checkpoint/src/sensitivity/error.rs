//! Why a mix cannot be made or measured.

use crate::plan::PlanError;
use kvant_container::{Diagnostic, ErrorKind, Remedy};
use kvant_forward::evaluation::EvaluationError;
use kvant_forward::forward::ForwardError;
use kvant_gguf::model::GgufPlanError;
use kvant_weights::recipe_error::RecipeError;

/// See the variants.
#[derive(Debug, thiserror::Error)]
pub enum MixError {
    /// An option or a recipe.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// No checkpoint can be made so.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No GGUF file can be made so.
    #[error(transparent)]
    Gguf(#[from] GgufPlanError),
    /// The model does not run here.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The model cannot be measured, or the user asked to stop.
    #[error(transparent)]
    Evaluation(#[from] EvaluationError),
    /// A weight has no codes (*invalid*).
    #[error("`{layer}` cannot be rounded to {option}: {reason}")]
    Rounding {
        /// The layer.
        layer: String,
        /// The option.
        option: String,
        /// The reason.
        reason: String,
    },
    /// An option needs what a search does not find (*unsupported*).
    #[error("‹options› {option}: {reason}")]
    Option {
        /// The option.
        option: String,
        /// The reason.
        reason: String,
        /// The remedy.
        hint: String,
    },
    /// No group has a choice (*invalid*).
    #[error("no layer of the model fits any of the options")]
    NothingFits,
    /// What was found cannot be kept (*io*).
    #[error("cannot write {file}: {cause}")]
    Keep {
        /// The file.
        file: String,
        /// The system's answer.
        cause: std::io::Error,
    },
}

impl Diagnostic for MixError {
    fn kind(&self) -> ErrorKind {
        match self {
            MixError::Recipe(error) => error.kind(),
            MixError::Plan(error) => error.kind(),
            MixError::Gguf(error) => error.kind(),
            MixError::Forward(error) => error.kind(),
            MixError::Evaluation(error) => error.kind(),
            MixError::Rounding { .. } | MixError::NothingFits => ErrorKind::Invalid,
            MixError::Option { .. } => ErrorKind::Unsupported,
            MixError::Keep { .. } => ErrorKind::Io,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            MixError::Recipe(error) => error.hint(),
            MixError::Plan(error) => error.hint(),
            MixError::Gguf(error) => error.hint(),
            MixError::Forward(error) => error.hint(),
            MixError::Evaluation(error) => error.hint(),
            MixError::Rounding { .. } => Some(
                "download the file again, or leave this option out; `kvant verify` finds weights that are NaN or infinite"
                    .to_owned(),
            ),
            MixError::Option { hint, .. } => Some(hint.clone()),
            MixError::NothingFits => {
                Some("give ‹options› with other group sizes; `kvant inspect` shows the sizes of layers".to_owned())
            }
            MixError::Keep { .. } => Some("name another file with ‹sensitivities›".to_owned()),
        }
    }

    fn remedies(&self) -> Vec<Remedy> {
        match self {
            MixError::Plan(error) => error.remedies(),
            MixError::Recipe(error) => error.remedies(),
            MixError::Gguf(error) => error.remedies(),
            MixError::Forward(error) => error.remedies(),
            MixError::Evaluation(error) => error.remedies(),
            error => Remedy::of_hint(error.hint()),
        }
    }
}
