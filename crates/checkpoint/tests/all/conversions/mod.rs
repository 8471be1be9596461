//! Conversions between layouts: every cell of the matrix of sources and targets is exact, refused with a reason, or loses what
//! is said. The matrix over the models at hand is printed into docs/reference/conversions.md.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod gpt_oss;
mod latent;
mod matrix;
mod nvfp4;
mod resume;
mod siblings;
mod single;
pub mod sources;
mod ternary;
mod together;
