//! Reading a weight matrix out of a checkpoint: any float type, either orientation, one expert of many, or codes and
//! scales. Not quantizing it.

use crate::import::PackedMatrix;
use kvant_numeric::kernel::{Elements, Range, Source, element_ranges, group_ranges, widen};
use kvant_numeric::pack::transpose;
use kvant_numeric::simd::Isa;
use std::ops;
use std::sync::Arc;

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

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A weight of `rows` output and `columns` input channels, in the mapped bytes of a checkpoint.
#[derive(Clone, Debug)]
pub struct WeightMatrix<'a> {
    /// Output channels.
    pub rows: usize,
    /// Input channels.
    pub columns: usize,
    storage: Storage<'a>,
}

/// How the elements are stored.
#[derive(Clone, Debug)]
enum Storage<'a> {
    /// Floats. Where they are input-major, element `(row, column)` stands at `column * rows + row` (GPT-2's Conv1D, fused
    /// experts).
    Plain { bytes: &'a [u8], source: Source, input_major: bool },
    /// Codes and scales, from a row of the whole matrix on.
    Packed { matrix: Arc<PackedMatrix<'a>>, first_row: usize },
}

impl<'a> WeightMatrix<'a> {
    /// A matrix of floats: `rows * columns` elements in `bytes`, by columns where it is `input_major`.
    pub fn plain(
        bytes: &'a [u8],
        source: Source,
        (rows, columns): (usize, usize),
        input_major: bool,
    ) -> WeightMatrix<'a> {
        WeightMatrix { rows, columns, storage: Storage::Plain { bytes, source, input_major } }
    }

    /// A quantized matrix.
    pub fn packed(matrix: Arc<PackedMatrix<'a>>) -> WeightMatrix<'a> {
        let (rows, columns) = (matrix.rows(), matrix.columns());
        WeightMatrix { rows, columns, storage: Storage::Packed { matrix, first_row: 0 } }
    }

    /// Some rows. Of a matrix stored by columns, whose rows are no run of bytes, all.
    pub fn slice_rows(&self, rows: ops::Range<usize>) -> WeightMatrix<'a> {
        let storage = match &self.storage {
            Storage::Plain { input_major: true, .. } => return self.clone(),
            Storage::Plain { bytes, source, input_major } => {
                let row = self.columns * source.size();
                Storage::Plain {
                    bytes: &bytes[rows.start * row..rows.end * row],
                    source: *source,
                    input_major: *input_major,
                }
            }
            Storage::Packed { matrix, first_row } => {
                Storage::Packed { matrix: Arc::clone(matrix), first_row: first_row + rows.start }
            }
        };
        WeightMatrix { rows: rows.len(), columns: self.columns, storage }
    }

    /// The elements as they are stored, where those are the values, row by row.
    pub fn elements(&self) -> Option<Elements<'a>> {
        match &self.storage {
            Storage::Plain { bytes, source, input_major: false } => Elements::stored(*source, bytes),
            _ => None,
        }
    }

    /// The elements of a band as `f32`, row-major, appended to `out`.
    pub fn read(&self, isa: Isa, band: &Band, out: &mut Vec<f32>) {
        match &self.storage {
            Storage::Plain { bytes, source, input_major } => {
                let start = out.len();
                out.resize(start + band.len(), 0.0);
                let out = &mut out[start..];
                match input_major {
                    true => self.read_transposed(isa, bytes, *source, band, out),
                    false => self.read_rows(isa, bytes, *source, band, out),
                }
            }
            Storage::Packed { matrix, first_row } => {
                let rows = band.rows.start + first_row..band.rows.end + first_row;
                matrix.read(isa, &Band { rows, columns: band.columns.clone() }, out);
            }
        }
    }

    /// The range of a band's elements.
    pub fn range(&self, isa: Isa, band: &Band) -> Range {
        let (mut values, mut range) = (Vec::new(), [Range::EMPTY]);
        if let (Some(elements), true) = (self.elements(), band.columns.len() == self.columns) {
            let elements = elements.slice(band.rows.start * self.columns..band.rows.end * self.columns);
            element_ranges(isa, elements, elements.len().max(1), &mut range);
            return range[0];
        }
        self.read(isa, band, &mut values);
        group_ranges(isa, &values, values.len().max(1), &mut range);
        range[0]
    }

    fn read_rows(&self, isa: Isa, bytes: &[u8], source: Source, band: &Band, out: &mut [f32]) {
        let size = source.size();
        if band.columns.len() == self.columns {
            // Whole rows are one run.
            let start = band.rows.start * self.columns * size;
            return widen(isa, source, &bytes[start..start + out.len() * size], out);
        }
        for (row, out) in band.rows.clone().zip(out.chunks_mut(band.columns.len().max(1))) {
            let start = (row * self.columns + band.columns.start) * size;
            widen(isa, source, &bytes[start..start + out.len() * size], out);
        }
    }

    fn read_transposed(&self, isa: Isa, bytes: &[u8], source: Source, band: &Band, out: &mut [f32]) {
        let size = source.size();
        let mut by_columns = vec![0.0; out.len()];
        for (column, line) in band.columns.clone().zip(by_columns.chunks_mut(band.rows.len().max(1))) {
            let start = (column * self.rows + band.rows.start) * size;
            widen(isa, source, &bytes[start..start + line.len() * size], line);
        }
        transpose(&by_columns, band.columns.len(), band.rows.len(), out);
    }
}

/// Splits a matrix along one axis into bands of about `target` elements, each but the last a multiple of `unit` long.
pub fn bands(rows: usize, columns: usize, axis: BandAxis, unit: usize, target: usize) -> Vec<Band> {
    let whole = Band { rows: 0..rows, columns: 0..columns };
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

/// Along which axis a matrix is cut into bands, so that every tensor made of a band is one run of bytes.
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

    fn matrix(bytes: &[u8], input_major: bool) -> WeightMatrix<'_> {
        WeightMatrix::plain(bytes, Source::F32, (3, 5), input_major)
    }

    fn bytes(values: impl Iterator<Item = f32>) -> Vec<u8> {
        values.flat_map(f32::to_le_bytes).collect()
    }

    #[test]
    fn both_orientations_give_the_same_bands() {
        let plain = bytes((0..15).map(|i| i as f32));
        let turned = bytes((0..15).map(|i| (i % 3 * 5 + i / 3) as f32));
        for band in
            [Band { rows: 0..3, columns: 0..5 }, Band { rows: 1..3, columns: 0..5 }, Band { rows: 0..3, columns: 2..4 }]
        {
            let (mut a, mut b) = (vec![], vec![]);
            matrix(&plain, false).read(Isa::best(), &band, &mut a);
            matrix(&turned, true).read(Isa::best(), &band, &mut b);
            let expected: Vec<f32> =
                band.rows.clone().flat_map(|r| band.columns.clone().map(move |c| (r * 5 + c) as f32)).collect();
            assert_eq!((&a, &b), (&expected, &expected));
        }
    }

    #[test]
    fn rows_of_a_matrix_are_a_matrix() {
        let plain = bytes((0..15).map(|i| i as f32));
        let mut out = vec![];
        matrix(&plain, false).slice_rows(1..3).read(Isa::best(), &Band { rows: 1..2, columns: 3..5 }, &mut out);
        assert_eq!(out, [13.0, 14.0]);
    }

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
        assert_eq!(bands(0, 5, BandAxis::Rows, 1, 10), vec![]);
    }
}
