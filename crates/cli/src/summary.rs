//! Lines of summaries: a title and what it says, and how to load a result.

use kvant::loading;
use std::path::Path;

/// A line of a summary.
pub type Line = (&'static str, String);

/// Lines with their titles in a column.
pub fn lines(lines: impl IntoIterator<Item = Line>) -> String {
    lines.into_iter().map(|(name, value)| format!("{name:<15}  {value}")).collect::<Vec<_>>().join("\n")
}

/// The given lines, and how each loader loads the model at `path`.
pub fn with_loaders(before: impl IntoIterator<Item = Line>, loaders: &[&'static str], path: &Path) -> String {
    let loading = loading::lines(loaders, path).into_iter().enumerate().map(|(i, (loader, line))| {
        let line = line.map(|line| format!(": {line}")).unwrap_or_default();
        (if i == 0 { "load it with" } else { "" }, format!("{loader}{line}"))
    });
    lines(before.into_iter().chain(loading))
}
