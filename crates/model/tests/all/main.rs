//! The tests of the library as its users call it, in one program.

mod links;
mod recognise;
#[allow(clippy::unwrap_used)] // Helpers of tests.
#[path = "../support/mod.rs"]
mod support;
