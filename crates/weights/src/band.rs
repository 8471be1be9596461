//! Parts of a matrix, and the cutting of a matrix into them. Not their elements.

use std::ops;

/// A part of a matrix: some rows and some columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// Rows, that is output channels.
    pub rows: ops::Range<usize>,
    /// Columns, that is input channels.
    pub columns: ops::Range<usize>,
}

impl Band {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Splits a matrix along one axis into bands of about `target` elements, each but the last a multiple of `unit` long. A matrix without
/// elements does not have one, regardless of its other dimension.
pub fn bands(rows: usize, columns: usize, axis: BandAxis, unit: usize, target: usize) -> Vec<Band> {
    let whole = Band { rows: 0..rows, columns: 0..columns };
    if whole.is_empty() {
        return Vec::new();
    }
    let (length, other) = match axis {
        BandAxis::Rows => (rows, columns),
        BandAxis::Columns => (columns, rows),
        BandAxis::Whole => return vec![whole],
    };
    let unit = unit.clamp(1, length.max(1));
    let step = (target / other.max(1) / unit).max(1) * unit;
    let parts = (0..length).step_by(step).map(|start| start..(start + step).min(length));
    match axis {
        BandAxis::Rows => parts.map(|rows| Band { rows, columns: 0..columns }).collect(),
        _ => parts.map(|columns| Band { rows: 0..rows, columns }).collect(),
    }
}

/// The axis along which a matrix is cut into bands, so that every tensor of a band is one run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BandAxis {
    /// Some rows, all columns.
    Rows,
    /// Some columns, all rows.
    Columns,
    /// Not at all.
    Whole,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_cover_everything_once_in_units() {
        for (axis, unit, target) in
            [(BandAxis::Rows, 8, 100), (BandAxis::Columns, 32, 1), (BandAxis::Whole, 1, 1), (BandAxis::Rows, 500, 10)]
        {
            let parts = bands(100, 70, axis, unit, target);
            assert_eq!(parts.iter().map(Band::len).sum::<usize>(), 7000);
            for part in &parts[..parts.len() - 1] {
                assert!(part.rows.len() % unit == 0 || part.columns.len() % unit == 0);
            }
        }
        for axis in [BandAxis::Rows, BandAxis::Columns] {
            assert_eq!((bands(0, 1 << 60, axis, 1, 10), bands(1 << 60, 0, axis, 1, 10)), (vec![], vec![]));
        }
    }
}
