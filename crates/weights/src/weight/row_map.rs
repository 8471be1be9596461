//! Which rows of a stored matrix become which rows of a tensor in the file. No elements.

use std::ops::Range;

/// The rows of a tensor, by those of the matrix that it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowMap {
    /// `count` rows from `first` on.
    Run {
        /// The first row.
        first: usize,
        /// Their number.
        count: usize,
    },
    /// Every `step`-th row from `first` on: one of several projections whose rows alternate.
    Every {
        /// The first row.
        first: usize,
        /// The distance of two rows.
        step: usize,
        /// Their number.
        count: usize,
    },
    /// Heads of `width` rows whose halves turn together, put side by side for a rotary embedding that turns neighbours:
    /// row `2i + j` of a head is its row `j turning/2 + i`. Rows behind those that turn stay.
    Neighbours {
        /// Rows of a head.
        width: usize,
        /// Rows of a head that turn, the first ones.
        turning: usize,
        /// Rows of all heads.
        count: usize,
    },
    /// Projections that alternate head by head, one after the other: row `(p, h, i)` is row `(h, p, i)`.
    Unfolded {
        /// Heads.
        heads: usize,
        /// Projections.
        parts: usize,
        /// Rows of a head of one projection.
        width: usize,
    },
}

impl RowMap {
    /// All rows in their order.
    pub fn all(count: usize) -> RowMap {
        RowMap::Run { first: 0, count }
    }

    /// How many rows there are.
    pub fn count(self) -> usize {
        match self {
            RowMap::Run { count, .. } | RowMap::Every { count, .. } | RowMap::Neighbours { count, .. } => count,
            RowMap::Unfolded { heads, parts, width } => heads * parts * width,
        }
    }

    /// The row of the matrix that becomes a row of the tensor.
    pub fn source(self, row: usize) -> usize {
        match self {
            RowMap::Run { first, .. } => first + row,
            RowMap::Every { first, step, .. } => first + row * step,
            RowMap::Neighbours { width, turning, .. } => match (row / width, row % width) {
                (head, within) if within < turning => head * width + within % 2 * (turning / 2) + within / 2,
                _ => row,
            },
            RowMap::Unfolded { heads, parts, width } => {
                let (part, head, within) = (row / (heads * width), row / width % heads, row % width);
                (head * parts + part) * width + within
            }
        }
    }

    /// The row of the tensor that a row of the matrix becomes; `None` where it has no part in it: the inverse of
    /// [`RowMap::source`].
    pub fn position(self, row: usize) -> Option<usize> {
        let position = match self {
            RowMap::Run { first, .. } => row.checked_sub(first)?,
            RowMap::Every { first, step, .. } => {
                let distance = row.checked_sub(first)?;
                distance.is_multiple_of(step).then_some(distance / step)?
            }
            RowMap::Neighbours { width, turning, .. } => match (row / width, row % width, turning / 2) {
                (head, within, half) if within < turning => head * width + within % half * 2 + within / half,
                _ => row,
            },
            RowMap::Unfolded { heads, parts, width } => {
                let (head, part, within) = (row / (parts * width), row / width % parts, row % width);
                (part * heads + head) * width + within
            }
        };
        Some(position).filter(|position| *position < self.count() && self.source(*position) == row)
    }

    /// The rows of the matrix that become some rows of the tensor, in runs.
    pub fn runs(self, rows: Range<usize>) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        for source in rows.map(|row| self.source(row)) {
            match runs.last_mut() {
                Some(run) if run.end == source => run.end += 1,
                _ => runs.push(source..source + 1),
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(map: RowMap) -> Vec<usize> {
        (0..map.count()).map(|row| map.source(row)).collect()
    }

    #[test]
    fn row_maps_produce_the_documented_orders() {
        assert_eq!(sources(RowMap::Run { first: 3, count: 2 }), [3, 4]);
        assert_eq!(sources(RowMap::Every { first: 1, step: 2, count: 3 }), [1, 3, 5]);
        let whole = RowMap::Neighbours { width: 6, turning: 6, count: 12 };
        assert_eq!(sources(whole), [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
        let part = RowMap::Neighbours { width: 6, turning: 4, count: 12 };
        assert_eq!(sources(part), [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]);
        let unfolded = RowMap::Unfolded { heads: 2, parts: 3, width: 2 };
        assert_eq!(sources(unfolded), [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]);
    }

    #[test]
    fn row_positions_invert_row_sources() {
        let maps = [
            RowMap::Run { first: 3, count: 2 },
            RowMap::Every { first: 1, step: 2, count: 3 },
            RowMap::Neighbours { width: 6, turning: 6, count: 12 },
            RowMap::Neighbours { width: 6, turning: 4, count: 12 },
            RowMap::Unfolded { heads: 2, parts: 3, width: 2 },
        ];
        for map in maps {
            let taken = sources(map);
            for row in 0..20 {
                assert_eq!(map.position(row), taken.iter().position(|source| *source == row), "{map:?}, row {row}");
            }
        }
    }

    #[test]
    fn row_runs_are_as_long_as_possible() {
        assert_eq!(RowMap::all(10).runs(2..9), std::slice::from_ref(&(2..9)));
        assert_eq!(RowMap::Unfolded { heads: 2, parts: 3, width: 2 }.runs(1..6), [1..2, 6..8, 2..4]);
        assert_eq!(RowMap::Every { first: 0, step: 2, count: 2 }.runs(0..2), [0..1, 2..3]);
        assert!(RowMap::all(3).runs(1..1).is_empty());
    }
}
