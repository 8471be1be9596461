//! Errors of a recipe file that do not depend on the model.

/// A recipe file that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct RecipeFileError {
    /// Whether the file is valid but requests something that Kvant does not support.
    pub is_unsupported: bool,
    /// The file, and the line or key where that is known.
    pub place: String,
    /// The problem.
    pub reason: String,
    /// The hint.
    pub hint: String,
}

impl RecipeFileError {
    pub(super) fn invalid(
        place: impl Into<String>,
        reason: impl Into<String>,
        hint: impl Into<String>,
    ) -> RecipeFileError {
        RecipeFileError { is_unsupported: false, place: place.into(), reason: reason.into(), hint: hint.into() }
    }

    pub(super) fn unsupported(
        place: impl Into<String>,
        reason: impl Into<String>,
        hint: impl Into<String>,
    ) -> RecipeFileError {
        RecipeFileError { is_unsupported: true, ..RecipeFileError::invalid(place, reason, hint) }
    }
}
