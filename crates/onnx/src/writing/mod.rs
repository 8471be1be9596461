//! From a placement and its solution to a quantized graph. Nothing is decided here.

mod boundary;
mod operators;
mod pairs;

pub use operators::Dialect;
pub use pairs::write_pairs;
