//! Plans and reports in words: sections of lines and tables that every front end can show, and remarks on a result. Their layout and
//! style are the front end's.

mod convert;
mod eval_graph;
mod evaluate;
mod evaluate_models;
mod findings;
mod generate;
mod graph_listing;
mod inspect;
mod inspect_gguf;
mod inspect_graph;
mod layers;
mod pattern;
mod pipeline;
mod plan;
mod plan_gguf;
mod plan_graph;
mod quantize;
mod quantize_graph;
mod search;
mod sensitivity;
mod verify;

use crate::loading;
use crate::text::counts::Line;
use crate::text::{Table, printable, prose};
use std::path::Path;

/// A part of a summary.
#[derive(Clone, Debug)]
pub enum Section {
    /// Paragraphs.
    Text(String),
    /// Titles, and a value for each.
    Lines(Vec<Line>),
    /// A table.
    Table(Table),
}

/// Something to know about a result, by its weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// The result may be worse than it looks.
    Warning(String),
    /// Worth knowing.
    Note(String),
    /// For those who ask for more.
    Detail(String),
    /// A part of the summary.
    Summary(String),
}

/// Sections as text in lines of at most `width` characters, with an empty line between two sections. `title` styles the titles of
/// tables.
pub fn render(sections: &[Section], width: usize, title: &dyn Fn(&str) -> String) -> String {
    let text = |section: &Section| match section {
        Section::Text(text) => prose(&printable(text), width),
        Section::Lines(lines) => lines.iter().map(|line| titled(line, width)).collect::<Vec<_>>().join("\n"),
        Section::Table(table) => table.render(width, title),
    };
    sections.iter().map(text).collect::<Vec<_>>().join("\n\n")
}

/// The width of the titles of lines.
const TITLES: usize = 15;

/// A title and its value, which is wrapped beside it unless it is to be copied.
fn titled((name, value): &Line, width: usize) -> String {
    let is_copied = *name == LOAD || name.is_empty();
    let indent = TITLES + 2;
    let room = if is_copied { usize::MAX } else { width.saturating_sub(indent) };
    let next = format!("\n{:indent$}", "");
    // Values of several lines are aligned already.
    let value = prose(&printable(value).replace(&next, "\n"), room).replace('\n', &next);
    format!("{name:<TITLES$}  {value}")
}

/// The title of what loads an output, with a line to copy for each loader.
const LOAD: &str = "load it with";

/// The given lines, and how each loader loads the model at `path`.
fn with_loaders(before: impl IntoIterator<Item = Line>, loaders: &[&'static str], path: &Path) -> Section {
    let loading = loading::lines(loaders, path).into_iter().enumerate().map(|(i, (loader, line))| {
        let line = line.map(|line| format!(": {line}")).unwrap_or_default();
        (if i == 0 { LOAD } else { "" }, format!("{loader}{line}"))
    });
    Section::Lines(before.into_iter().chain(loading).collect())
}
