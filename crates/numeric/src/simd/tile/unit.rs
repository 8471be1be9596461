//! The tile unit of this CPU.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::amx::{Amx, Registers};
#[cfg(target_arch = "aarch64")]
use super::bfmmla::Vectors;
#[cfg(target_arch = "x86_64")]
use super::transpose::transpose;
#[cfg(target_arch = "aarch64")]
use super::transpose_neon::transpose;
#[cfg(target_arch = "x86_64")]
use super::vectors::Vectors;
use super::{Start, Tile};

/// The proof that this process may multiply tiles, and how. On x86-64 each includes AVX-512.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TileUnit {
    /// In the tile registers of AMX.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Amx(Amx),
    /// Rows of tiles in vectors, with AVX-512 BF16 or BFMMLA.
    Vectors(Vectors),
}

impl TileUnit {
    /// The fastest that there is. The variables `KVANT_DISABLE_AMX`, `KVANT_DISABLE_AVX512_BF16` and `KVANT_DISABLE_ARM_BF16` of the
    /// environment, set to anything but nothing or 0, keep each from being used.
    pub(crate) fn get() -> Option<TileUnit> {
        Self::amx().or_else(Self::vectors)
    }

    /// All that there are.
    #[cfg(test)]
    pub(crate) fn available() -> Vec<TileUnit> {
        Self::amx().into_iter().chain(Self::vectors()).collect()
    }

    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn amx() -> Option<TileUnit> {
        Amx::get().map(TileUnit::Amx)
    }

    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    fn amx() -> Option<TileUnit> {
        None
    }

    fn vectors() -> Option<TileUnit> {
        Vectors::get().map(TileUnit::Vectors)
    }

    /// Whether a product of so many bfloat16 for one number is faster than one of `f32`. Vectors of bfloat16 multiply twice as many
    /// numbers as those of `f32` in the same time (BFMMLA up to four times as many), tile registers many times more.
    pub(crate) fn pays(self, terms: usize) -> bool {
        match self {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            TileUnit::Amx(_) => true,
            TileUnit::Vectors(_) => terms < 2,
        }
    }

    /// Runs `work` with what it multiplies with made ready, which is undone at the end. `work` must not wait for other tasks: one
    /// that ran on this thread meanwhile would undo it too early.
    pub(crate) fn with_tiles<R>(self, work: impl FnOnce(&Tiles) -> R) -> R {
        work(&match self {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            TileUnit::Amx(amx) => Tiles::Registers(Registers::configure(amx)),
            TileUnit::Vectors(vectors) => Tiles::Vectors(vectors),
        })
    }

    /// Exchanges rows and columns of a tile, that is words of a row.
    #[inline(always)]
    pub(crate) fn transpose(self, tile: &mut Tile) {
        #[allow(unsafe_code)]
        // SAFETY: every proof on x86-64 includes AVX-512, and NEON is part of aarch64.
        unsafe {
            transpose(tile);
        }
    }
}

/// The tile unit prepared on this thread.
pub(crate) enum Tiles {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Registers(Registers),
    Vectors(Vectors),
}

impl Tiles {
    /// Adds the product of two tiles' height and two tiles' width over `b.len()` steps of 32 in depth:
    /// `sums[i][j] += sum_s a[s][i] * b[s][j]`, the sum taken in the order of `s`.
    ///
    /// A tile of `a` has bfloat16 `(row, k)` in row `row` at place `k`; one of `b` has `(k, column)` in row `k / 2`, in
    /// half `k % 2` of word `column`; one of `sums` has `f32`. There may be several pairs of tiles of `a` for each of
    /// `b`, as many for each: the terms of a sum, `a[s * terms + t][i]`. Products are exact, and numbers below the smallest normal
    /// one count as zero; how pairs of them are summed differs in the last bits.
    ///
    /// # Panics
    ///
    /// If `a` is not a multiple of `b`.
    pub(crate) fn multiply(&self, a: &[[Tile; 2]], b: &[[Tile; 2]], start: Start, sums: &mut [[Tile; 2]; 2]) {
        match self {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Tiles::Registers(registers) => registers.multiply(a, b, start, sums),
            Tiles::Vectors(vectors) => vectors.multiply(a, b, start, sums),
        }
    }
}
