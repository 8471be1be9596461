//! From a placement and its solution to a quantized graph. Nothing is decided here.

pub mod block_placement;
mod boundary;
mod constants;
pub mod dynamic;
pub mod float16;
#[cfg(test)]
mod fusible_tests;
pub mod integer_operators;
mod matmul_nbits;
mod operators;
mod pairs;
mod qoperator;
mod remaining;
mod tables;
mod tensor_names;

pub use crate::block_map::BlockMap;
pub use constants::lift_constants;
pub(crate) use matmul_nbits::block_parameters;
pub use matmul_nbits::{Blocks, write_blocks};
pub use operators::{Dialect, Operators};
pub use pairs::write_pairs;
pub use qoperator::fuse;
pub(crate) use remaining::read_without;
