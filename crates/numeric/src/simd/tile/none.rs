//! The types of a target without products of tiles: they have no values, so what is written for them compiles and is never run.

use super::{Start, Tile};

/// The proof that tiles may be multiplied, which there is not.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TileUnit {}

/// The tile unit, which does not exist here.
pub(crate) enum Tiles {}

impl TileUnit {
    /// Nothing.
    pub(crate) fn get() -> Option<TileUnit> {
        None
    }

    /// Nothing.
    #[cfg(test)]
    pub(crate) fn available() -> Vec<TileUnit> {
        Vec::new()
    }

    /// Never called.
    pub(crate) fn pays(self, _terms: usize) -> bool {
        match self {}
    }

    /// Never called.
    pub(crate) fn with_tiles<R>(self, _work: impl FnOnce(&Tiles) -> R) -> R {
        match self {}
    }

    /// Never called.
    pub(crate) fn transpose(self, _tile: &mut Tile) {
        match self {}
    }
}

impl Tiles {
    /// Never called.
    pub(crate) fn multiply(&self, _a: &[[Tile; 2]], _b: &[[Tile; 2]], _start: Start, _sums: &mut [[Tile; 2]; 2]) {
        match *self {}
    }
}
