//! The tests of the library as its users call it, in one program.

#[path = "../../../formats/tests/common/mod.rs"]
mod common;
mod forward;
#[allow(clippy::unwrap_used)] // Helpers of tests.
#[path = "../../../model/tests/support/mod.rs"]
mod support;
