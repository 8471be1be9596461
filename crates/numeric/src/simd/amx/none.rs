//! The types of a target without AMX: they have no values, so what is written for AMX compiles and is never run.

use super::{Start, Tile};

/// The proof that AMX may be used, which there is not.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Amx {}

/// The tile registers, which there are not.
pub(crate) enum Tiles {}

impl Amx {
    /// Nothing.
    pub(crate) fn get() -> Option<Amx> {
        None
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
