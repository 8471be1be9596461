//! The tiles of a matrix that share a scale, as runs of elements that the kernels can take. Not the choice of tiles, which
//! is the scheme's [`Granularity`].

use crate::scheme::Granularity;

/// The tiles of a matrix that share a scale, as runs that the kernels can take.
pub(super) struct Tiles {
    /// Columns of the matrix.
    pub(super) width: usize,
    /// Rows of a tile.
    pub(super) rows: usize,
    /// Columns of a tile.
    pub(super) columns: usize,
    /// Tiles side by side.
    pub(super) across: usize,
    pub(super) count: usize,
    /// Whether the one tile is the whole tensor, of which the matrix may be a part.
    pub(super) whole_tensor: bool,
}

/// Consecutive elements, in groups of the tiles' columns, and the scales of those groups.
pub(super) struct Run {
    pub(super) elements: std::ops::Range<usize>,
    pub(super) scales: std::ops::Range<usize>,
}

impl Tiles {
    pub(super) fn new(granularity: Granularity, rows: usize, columns: usize) -> Tiles {
        let (tile_rows, tile_columns) = granularity.tile(rows, columns);
        let (tile_rows, tile_columns) = (tile_rows.max(1), tile_columns.max(1));
        let across = columns.div_ceil(tile_columns);
        let count = rows.div_ceil(tile_rows) * across;
        let whole_tensor = granularity == Granularity::Tensor;
        Tiles { width: columns.max(1), rows: tile_rows, columns: tile_columns, across, count, whole_tensor }
    }

    /// Splits `length` elements into runs: one row each, or all at once where no tile spans rows.
    pub(super) fn runs(&self, length: usize) -> impl Iterator<Item = Run> + '_ {
        let at_once = self.rows == 1 && self.width.is_multiple_of(self.columns);
        let step = if at_once { length.max(1) } else { self.width };
        (0..length).step_by(step).map(move |start| {
            let end = (start + step).min(length);
            let first = start / self.width / self.rows * self.across;
            let scales = if at_once { first..self.count } else { first..first + self.across };
            Run { elements: start..end, scales }
        })
    }

    pub(super) fn tile_of(&self, element: usize) -> usize {
        element / self.width / self.rows * self.across + element % self.width / self.columns
    }

    /// The elements of one tile.
    pub(super) fn gather(&self, values: &[f32], tile: usize) -> Vec<f32> {
        let (top, left) = (tile / self.across * self.rows, tile % self.across * self.columns);
        let rows = values.chunks(self.width).skip(top).take(self.rows);
        rows.flat_map(|row| row.iter().skip(left).take(self.columns)).copied().collect()
    }
}
