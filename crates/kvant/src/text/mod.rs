//! Words for people: sizes, times and counts, and text from files made harmless for a terminal.

pub mod counts;
mod escape;
pub mod size;

pub use escape::printable;
