//! Errors of a recipe, whatever its source.

use kvant_container::{Diagnostic, ErrorKind};
use kvant_quant::recipe::RecipeFileError;

use crate::algorithm_settings::{SpellingError, algorithms, suffix};
use crate::pass::PassError;
use crate::preset::PRESETS;

/// A recipe that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The file is no recipe, or has keys that do not apply to graphs.
    #[error("{0}")]
    Recipe(#[from] RecipeFileError),
    /// A value in the file is none of those that there are.
    #[error("{file}: {problem}")]
    File {
        /// The file.
        file: String,
        /// The problem.
        problem: String,
    },
    /// The scheme is one of checkpoints, which no graph expresses.
    #[error("no graph expresses the scheme `{scheme}`: {reason}")]
    Scheme {
        /// The scheme.
        scheme: String,
        /// The reason.
        reason: &'static str,
    },
    /// There is no such preset.
    #[error("`{name}` is not a preset for ONNX graphs; the nearest name is {}", nearest(name))]
    UnknownPreset {
        /// The name.
        name: String,
    },
    /// Neither a file nor an option names a preset.
    #[error("the recipe names no preset")]
    NoPreset,
    /// An override is not understood.
    #[error("the override of {tensors}: {problem}")]
    Override {
        /// Its pattern.
        tensors: String,
        /// The problem.
        problem: String,
    },
    /// Nodes to leave out are not understood.
    #[error("the excluded subgraph `{0}` is not written as FROM..TO")]
    Subgraph(String),
    /// Two options leave each other without effect.
    #[error("{one} and {other} exclude each other: {because}")]
    Contradiction {
        /// An option.
        one: &'static str,
        /// The options that it excludes.
        other: String,
        /// The reason.
        because: &'static str,
    },
    /// There is no such pass.
    #[error("{0}")]
    Pass(#[from] PassError),
    /// An algorithm is not understood.
    #[error("{0}")]
    Algorithm(#[from] SpellingError),
}

/// The nearest preset, or the nearest algorithm behind the preset that the name begins with.
fn nearest(name: &str) -> String {
    let name = name.to_ascii_uppercase();
    let presets = || PRESETS.iter().map(|preset| preset.name);
    let begins = |preset: &&str| name.strip_prefix(preset).is_some_and(|rest| rest.starts_with('_'));
    let base = presets().filter(begins).max_by_key(|preset| preset.len());
    let suffixed = |base| algorithms().into_iter().map(move |row| format!("{base}{}", suffix(&row.name)));
    let known = presets().map(str::to_owned).chain(base.into_iter().flat_map(suffixed));
    known.min_by_key(|known| strsim::levenshtein(known, &name)).unwrap_or_default()
}

impl Diagnostic for SettingsError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Recipe(error) if error.is_unsupported => ErrorKind::Unsupported,
            Self::Scheme { .. } => ErrorKind::Unsupported,
            Self::Pass(error) if error.kind() == ErrorKind::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::Usage,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Recipe(error) => return Some(error.hint.clone()),
            Self::File { .. } => "docs/reference/recipes.md describes all keys",
            Self::Scheme { .. } => "`kvant list presets` shows what graphs are quantized to",
            Self::UnknownPreset { .. } => "`kvant list presets` shows all",
            Self::NoPreset => "name one with ‹preset›, or in the file as scheme = \"A8W8\"",
            Self::Override { .. } => {
                "write an element type, `channel` or `tensor`, `symmetric` or `asymmetric`, a calibration method, with colons between; or `keep`"
            }
            Self::Subgraph(_) => "write the names of nodes, as in conv1..add3 or a,b..c",
            Self::Contradiction { .. } => "leave one of them out, or choose another type",
            Self::Pass(error) => return error.hint(),
            Self::Algorithm(error) => return error.hint(),
        };
        Some(hint.to_owned())
    }
}
