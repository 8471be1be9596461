//! Choices of codes. Round to nearest is the first; every rounding makes a [`QuantTensor`](crate::QuantTensor).

mod rtn;

pub use rtn::{RoundingError, Rtn, TensorContext};

/// The roundings with their names, for `kvant list algorithms`.
pub const ROUNDINGS: &[(&str, &str)] = &[("rtn", "round to nearest; needs no data")];
