//! Products of 16x16 tiles of bfloat16 with AMX. Not matrices of any size: [`crate::linalg`] packs those into tiles.
//!
//! The instructions are written as `asm!`, which stable Rust takes; its AMX intrinsics are not stable. Where there can be
//! no AMX, that is on anything but Linux on x86-64, [`Amx`] has no values.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod detect;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod none;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod product;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod transpose;

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) use detect::Amx;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) use none::{Amx, Tiles};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) use product::Tiles;

/// Rows of a tile, and words of a row.
pub(crate) const SIDE: usize = 16;

/// The contents of a tile register: 16 rows of 16 words, each an `f32` or a pair of bfloat16, the first in the low half.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Tile(pub [[u32; SIDE]; SIDE]);

impl Tile {
    /// All zeros.
    pub(crate) const ZERO: Tile = Tile([[0; SIDE]; SIDE]);
}

/// What a product is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// Nothing.
    Zero,
    /// The sums as they are.
    Sums,
}

#[cfg(test)]
mod tests;
