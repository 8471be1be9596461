//! What can be wrong with a recipe file before anything is known about the model.

/// A recipe file that cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct RecipeFileError {
    /// Whether the file is valid, and asks for something that Kvant does not do.
    pub is_unsupported: bool,
    /// The file, and the line or key where that is known.
    pub place: String,
    /// What is wrong there.
    pub reason: String,
    /// What to do about it.
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
