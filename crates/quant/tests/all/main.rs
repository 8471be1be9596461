//! The tests of the library as its users call it, in one program: linking one for each file took longer than compiling them.
//! What measures its process stands beside it.

mod activations;
mod golden;
mod gptq;
#[path = "../../../../tests/golden/input.rs"]
mod input;
mod observers;
mod transforms;
