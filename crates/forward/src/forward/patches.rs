//! The order of the patches of an image of any size, which rows, positions, windows of attention and squares of patches follow.

/// How patches stand one after the other: squares of patches, row by row; where there are windows of squares, those of a window, row by row,
/// window after window. Windows at the right and below have what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PatchOrder {
    /// Patches along a side of a square.
    pub square: usize,
    /// Squares along a side of a window, where there are windows.
    pub window: Option<usize>,
}

impl PatchOrder {
    /// Squares along the height and width of a grid of patches.
    pub fn squares(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        [rows / self.square.max(1), columns / self.square.max(1)]
    }

    /// The squares of each window, by their numbers row by row.
    fn windows(self, grid: [usize; 2]) -> Vec<Vec<usize>> {
        let [rows, columns] = self.squares(grid);
        let side = self.window.unwrap_or(rows.max(columns)).max(1);
        let mut windows = Vec::new();
        for top in (0..rows).step_by(side) {
            for left in (0..columns).step_by(side) {
                let down = top..rows.min(top + side);
                let across = left..columns.min(left + side);
                windows.push(down.flat_map(|row| across.clone().map(move |column| row * columns + column)).collect());
            }
        }
        windows
    }

    /// The row and column of each patch, in their order.
    pub fn places(self, grid: [usize; 2]) -> Vec<[usize; 2]> {
        let [_, columns] = self.squares(grid);
        let square = self.square;
        let in_square = move |number: usize| {
            let (top, left) = (number / columns.max(1) * square, number % columns.max(1) * square);
            (0..square * square).map(move |patch| [top + patch / square, left + patch % square])
        };
        self.windows(grid).into_iter().flatten().flat_map(in_square).collect()
    }

    /// Patches of each window.
    pub fn window_lengths(self, grid: [usize; 2]) -> Vec<usize> {
        self.windows(grid).into_iter().map(|squares| squares.len() * self.square * self.square).collect()
    }

    /// Rows of squares in their order, of `width` elements each, put row by row.
    pub fn row_by_row(self, grid: [usize; 2], rows: &[f32], width: usize) -> Vec<f32> {
        let mut out = vec![0.0; rows.len()];
        for (row, square) in rows.chunks_exact(width.max(1)).zip(self.windows(grid).into_iter().flatten()) {
            out[square * width..(square + 1) * width].copy_from_slice(row);
        }
        out
    }
}

/// The numbers of the two rows of a learned grid of `side` rows around place `at` of `count`, corner on corner, and their shares.
pub(super) fn nearest(at: usize, count: usize, side: usize) -> [(usize, f32); 2] {
    let source = at as f32 * (side - 1) as f32 / (count.max(2) - 1) as f32;
    let below = source.floor();
    let first = (below as usize).min(side - 1);
    [(first, 1.0 - (source - below)), ((first + 1).min(side - 1), source - below)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn squares_stand_row_by_row_or_window_by_window() {
        let plain = PatchOrder { square: 2, window: None };
        assert_eq!(plain.places([2, 4])[..5], [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2]]);
        assert_eq!(plain.window_lengths([2, 4]), [8]);
        let windows = PatchOrder { square: 1, window: Some(2) };
        let places = windows.places([3, 3]);
        assert_eq!(places, [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [1, 2], [2, 0], [2, 1], [2, 2]]);
        assert_eq!(windows.window_lengths([3, 3]), [4, 2, 2, 1]);
        let rows: Vec<f32> = places.iter().map(|[row, column]| (3 * row + column) as f32).collect();
        assert_eq!(windows.row_by_row([3, 3], &rows, 1), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    }

    #[test]
    fn learned_grids_are_stretched_corner_on_corner() {
        assert_eq!(nearest(0, 5, 3), [(0, 1.0), (1, 0.0)]);
        assert_eq!(nearest(1, 5, 3), [(0, 0.5), (1, 0.5)]);
        assert_eq!(nearest(4, 5, 3), [(2, 1.0), (2, 0.0)]);
        assert_eq!(nearest(0, 1, 3), [(0, 1.0), (1, 0.0)]);
    }
}
