//! Quantizing operators, one kernel each, computing as the runtimes do. No graphs: a kernel maps values to values.
//!
//! The operators of the standard and `com.microsoft` domains are in [`mod@linear`]; [`Bfp`] and [`Microscaling`] are those of
//! `com.amd.quark`, whose semantics are facts measured on AMD Quark 0.13; [`NBits`] is the weight of a product with few bits.

mod bfp;
mod blocks;
pub mod linear;
mod microscaling;
mod nbits;

pub use bfp::{Bfp, BfpMethod, Rounding};
pub use microscaling::{Microscaling, MxElement};
pub use nbits::NBits;

/// An attribute of a quantizing operator that no kernel here computes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the attribute {name} = {value} is not handled")]
pub struct KernelError {
    /// The attribute.
    pub name: &'static str,
    /// Its value.
    pub value: String,
}

impl KernelError {
    pub(crate) fn new(name: &'static str, value: impl std::fmt::Display) -> Self {
        Self { name, value: value.to_string() }
    }
}

#[cfg(test)]
mod tests;
