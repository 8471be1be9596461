//! Text for people: sizes, times and counts, tables that fit a width, and text from files made harmless for a terminal.

pub mod counts;
mod escape;
mod markdown;
mod names;
pub mod size;
mod table;

pub use escape::printable;
pub use kvant_container::{shell_word, shown};
pub(crate) use markdown::{markdown_code, markdown_text};
pub(crate) use names::short_names;
pub use table::{Align, Table, prose};
