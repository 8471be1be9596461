//! Errors of a recipe from the command line, a TOML file or a configuration of Quark.

use kvant_container::{Diagnostic, ErrorKind};
use kvant_quant::recipe::RecipeFileError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Longest foreign text quoted in an error, in characters.
const MAX_QUOTED: usize = 120;

/// A recipe that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The text is wrong; nothing could be meant by it.
    #[error("{0}")]
    Invalid(Problem),
    /// The text means something that Kvant does not do (yet).
    #[error("{0}")]
    Unsupported(Problem),
    /// The file cannot be read.
    #[error("cannot read {}: {cause}", kvant_container::shown(file))]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
}

/// The location, the problem and the hint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The option, file or field.
    pub place: String,
    /// The problem.
    pub reason: String,
    /// The remedy.
    pub hint: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.reason)
    }
}

impl RecipeError {
    /// The text is wrong; nothing could be meant by it.
    pub fn invalid(place: impl Into<String>, reason: impl Into<String>, hint: impl Into<String>) -> RecipeError {
        RecipeError::Invalid(Problem { place: place.into(), reason: reason.into(), hint: hint.into() })
    }

    /// The text means something that Kvant does not do.
    pub fn unsupported(place: impl Into<String>, reason: impl Into<String>, hint: impl Into<String>) -> RecipeError {
        RecipeError::Unsupported(Problem { place: place.into(), reason: reason.into(), hint: hint.into() })
    }

    /// The same error, of a place inside `outer`.
    pub fn within(self, outer: &str) -> RecipeError {
        let nest = |problem: Problem| Problem { place: format!("{outer}: {}", problem.place), ..problem };
        match self {
            RecipeError::Invalid(problem) => RecipeError::Invalid(nest(problem)),
            RecipeError::Unsupported(problem) => RecipeError::Unsupported(nest(problem)),
            other => other,
        }
    }
}

impl Diagnostic for RecipeError {
    fn kind(&self) -> ErrorKind {
        match self {
            RecipeError::Invalid(_) | RecipeError::Read { .. } => ErrorKind::Usage,
            RecipeError::Unsupported(_) => ErrorKind::Unsupported,
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            RecipeError::Invalid(problem) | RecipeError::Unsupported(problem) => problem.hint.clone(),
            RecipeError::Read { cause, .. } if cause.kind() == std::io::ErrorKind::InvalidData => {
                "give a recipe as a text file in UTF-8: TOML, or a JSON or YAML file of another tool".to_owned()
            }
            RecipeError::Read { .. } => "check the path and its permissions".to_owned(),
        })
    }
}

impl From<RecipeFileError> for RecipeError {
    fn from(error: RecipeFileError) -> RecipeError {
        let RecipeFileError { is_unsupported, place, reason, hint } = error;
        let problem = Problem { place, reason, hint };
        if is_unsupported { RecipeError::Unsupported(problem) } else { RecipeError::Invalid(problem) }
    }
}

/// Foreign text, safe to print on one line.
pub fn quoted(text: &str) -> String {
    let escaped: String = text.chars().take(MAX_QUOTED).flat_map(char::escape_debug).collect();
    if text.chars().count() > MAX_QUOTED { format!("`{escaped}...`") } else { format!("`{escaped}`") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_is_escaped_and_shortened() {
        assert_eq!(quoted("a\nb"), "`a\\nb`");
        assert!(quoted(&"x".repeat(10_000)).len() < 130);
    }

    #[test]
    fn error_location_is_prefixed() {
        let error = RecipeError::invalid("seed", "no number", "give one").within("recipe.toml");
        assert_eq!(
            (error.to_string().as_str(), error.hint().as_deref()),
            ("recipe.toml: seed: no number", Some("give one"))
        );
    }
}
