//! Shape inference: the element type and shape of every tensor of a model, as far as they follow from the graph.
//!
//! One table of operators (`rules`); what is not in it stays unknown, never guessed. No data are read but small constants
//! that say shapes.

mod contents;
mod dim;
mod infer;
mod mismatch;
mod node;
mod rules;
mod types;

pub use dim::Dim;
pub(crate) use infer::contradiction;
pub use infer::infer;
pub use types::{Types, ValueType};
