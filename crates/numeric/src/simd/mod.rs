//! Compiling one loop for several instruction sets and choosing among them at run time. The only `unsafe` of this crate
//! is here: the call into a function compiled for instructions that have been found on this CPU.

mod dispatch;
mod isa;

pub use dispatch::{Loop, dispatch};
pub use isa::Isa;
