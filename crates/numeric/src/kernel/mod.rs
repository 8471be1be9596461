//! Loops over slices, compiled per instruction set: widening, ranges, codes. Each has a twin on one value in
//! [`crate::format`] or [`crate::arithmetic`] that specifies it, and a test that every variant equals it bit for bit.

mod int_codes;
mod minifloat_codes;
mod range;
mod widen;

pub use int_codes::{AffineStep, quantize_int};
pub use minifloat_codes::{Scaling, encode_minifloat};
pub use range::{Range, group_abs_max, group_ranges};
pub use widen::{Source, widen};
