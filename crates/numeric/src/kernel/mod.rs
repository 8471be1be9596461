//! Loops over slices, compiled per instruction set: widening, ranges, codes. Each has a twin on one value in
//! [`crate::format`] or [`crate::arithmetic`] that specifies it, and a test that every variant equals it bit for bit.

mod bins;
mod dequantize;
mod elements;
mod int_codes;
mod minifloat_codes;
mod narrow;
mod range;
mod widen;

pub use bins::{Bins, Counted, count_in_bins};
pub(crate) use dequantize::{CodeDecoder, FloatDecoder, IntegerDecoder};
pub use dequantize::{CodeKind, RowScales, dequantize_gathered, dequantize_row};
pub use elements::Elements;
pub(crate) use elements::visit_elements;
pub use int_codes::{AffineStep, element_codes, quantize_int};
pub use minifloat_codes::{Scaling, encode_elements, encode_minifloat};
pub use narrow::{narrow_to_bf16, narrow_to_f16};
pub use range::{Range, element_abs_max, element_ranges, group_abs_max, group_ranges};
pub use widen::{FloatDType, widen, widen_elements};
