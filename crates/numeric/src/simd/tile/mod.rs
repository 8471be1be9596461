//! Products of 16x16 tiles of bfloat16, with AMX, AVX-512 BF16 or BFMMLA. Not matrices of any size: [`crate::linalg`] packs those into tiles.
//!
//! On anything but x86-64 and aarch64, which have none of them, [`TileUnit`] has no values.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(target_arch = "aarch64")]
mod bfmmla;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod none;
#[cfg(target_arch = "x86_64")]
mod transpose;
#[cfg(target_arch = "aarch64")]
mod transpose_neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod unit;
#[cfg(target_arch = "x86_64")]
mod vectors;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) use none::{TileUnit, Tiles};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use unit::{TileUnit, Tiles};

/// Rows of a tile, and words of a row.
pub(crate) const SIDE: usize = 16;

/// The contents of a tile: 16 rows of 16 words, each an `f32` or a pair of bfloat16, the first in the low half.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Tile(pub [[u32; SIDE]; SIDE]);

impl Tile {
    /// All zeros.
    pub(crate) const ZERO: Tile = Tile([[0; SIDE]; SIDE]);
}

/// The accumulator of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Nothing.
    Zero,
    /// The sums as they are.
    Sums,
}

/// Pairs of tiles of a left operand for each of the right one, which has `right`.
///
/// # Panics
///
/// If one is not a multiple of the other.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn terms(left: usize, right: usize) -> usize {
    let terms = left.checked_div(right).unwrap_or(0);
    assert!(terms * right == left, "{left} pairs of tiles do not go with {right}");
    terms
}

#[cfg(test)]
mod tests;
