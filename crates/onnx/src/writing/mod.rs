//! From a placement and its solution to a quantized graph. Nothing is decided here.

mod boundary;
mod constants;
mod operators;
mod pairs;

pub use constants::lift_constants;
pub use operators::Dialect;
pub use pairs::write_pairs;
