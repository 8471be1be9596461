//! Reading a weight matrix: out of a checkpoint, in any float type, either orientation, one expert of many, or codes and
//! scales; or out of what stands in for it, floats or codes in memory. Not quantizing it.

mod block_codes;
mod blocks;
mod code_matrix;
mod codes;
mod folding;
mod imported;
mod in_memory;
mod merged;
mod not_finite;
mod packed;
mod recode;
mod rotated;
mod row_map;

pub use crate::band::{Band, BandAxis, bands};
pub use blocks::{BlockMatrix, BlockPiece, BlockTensor};
pub use code_matrix::{CodeMatrix, Factor, StoredScales, ZeroPoints, decode_scales, rounded_scales};
pub use codes::StoredCodes;
pub use folding::{ClippingThresholds, WeightTransform};
pub use imported::{ImportedTensor, Stored};
pub use in_memory::FastForm;
pub use merged::{LowRank, MergedBase, MergedMatrix, StoredBytes};
pub use not_finite::{first_not_finite, place};
pub use packed::PackedMatrix;
pub use recode::{RecodedParameters, integers};
pub use rotated::{PlacedRotation, RotatedRows, RotatedWeights, WeightRotation};
pub use row_map::RowMap;

use kvant_numeric::kernel::{Elements, FloatDType, Range, element_ranges, group_ranges, widen};
use kvant_numeric::linalg::CodedMatrix;
use kvant_numeric::pack::transpose;
use kvant_numeric::simd::Isa;
use kvant_quant::QuantTensor;
use rayon::prelude::*;
use rotated::RotatedMatrix;
use std::ops;
use std::sync::Arc;

/// Elements that a thread reads at a time where all of a weight is read.
const STRIP: usize = 256 << 10;

/// A weight of `rows` output and `columns` input channels, most often in the mapped bytes of a checkpoint.
#[derive(Clone, Debug)]
pub struct WeightMatrix<'a> {
    /// Output channels.
    pub rows: usize,
    /// Input channels.
    pub columns: usize,
    storage: Storage<'a>,
}

/// The storage of the elements.
#[derive(Clone, Debug)]
enum Storage<'a> {
    /// Floats.
    Plain { bytes: &'a [u8], source: FloatDType, order: Order },
    /// Codes and scales, from a row of the whole matrix on.
    Packed { matrix: Arc<PackedMatrix<'a>>, first_row: usize },
    /// Floats in memory, row by row, from an element on.
    Values { values: Arc<Vec<f32>>, first: usize },
    /// Codes in memory, from a row of the whole tensor on.
    Quantized { tensor: Arc<QuantTensor>, first_row: usize },
    /// Codes in memory in the order of products, from a row of the whole matrix on.
    Coded { matrix: Arc<CodedMatrix>, first_row: usize },
    /// Another matrix, folded; from a row of the whole on.
    Folded { matrix: Box<WeightMatrix<'a>>, folding: Arc<WeightTransform>, first_row: usize },
    /// Another matrix, rotated; from a row of the whole on.
    Rotated { matrix: Arc<RotatedMatrix<'a>>, first_row: usize },
}

/// The order of stored floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Row by row.
    Rows,
    /// Input-major: element `(row, column)` stands at `column * stride + row` (GPT-2's Conv1D, fused experts, and some rows of these).
    Columns { stride: usize },
}

impl<'a> WeightMatrix<'a> {
    /// A matrix of floats: `rows * columns` elements in `bytes`, by columns where it is `is_transposed`.
    pub fn plain(
        bytes: &'a [u8],
        source: FloatDType,
        (rows, columns): (usize, usize),
        is_transposed: bool,
    ) -> WeightMatrix<'a> {
        let order = if is_transposed { Order::Columns { stride: rows } } else { Order::Rows };
        WeightMatrix { rows, columns, storage: Storage::Plain { bytes, source, order } }
    }

    /// A quantized matrix.
    pub fn packed(matrix: Arc<PackedMatrix<'a>>) -> WeightMatrix<'a> {
        let (rows, columns) = (matrix.rows(), matrix.columns());
        WeightMatrix { rows, columns, storage: Storage::Packed { matrix, first_row: 0 } }
    }

    /// `rows * columns` floats, row-major.
    ///
    /// # Panics
    ///
    /// If there are more or fewer.
    pub fn values(values: Arc<Vec<f32>>, rows: usize, columns: usize) -> WeightMatrix<'a> {
        assert!(values.len() == rows * columns, "{} values are not {rows}x{columns}", values.len());
        WeightMatrix { rows, columns, storage: Storage::Values { values, first: 0 } }
    }

    /// The values of a quantized tensor, found band by band when they are read.
    pub fn quantized(tensor: Arc<QuantTensor>) -> WeightMatrix<'a> {
        let (rows, columns) = tensor.shape();
        WeightMatrix { rows, columns, storage: Storage::Quantized { tensor, first_row: 0 } }
    }

    /// The matrix with a folding, which is done when it is read.
    ///
    /// # Panics
    ///
    /// If the folding is of another size.
    pub fn folded(self, folding: Arc<WeightTransform>) -> WeightMatrix<'a> {
        let (rows, columns) = (self.rows, self.columns);
        assert!(folding.fits(rows, columns), "the folding is not of a {rows}x{columns} matrix");
        WeightMatrix { rows, columns, storage: Storage::Folded { matrix: Box::new(self), folding, first_row: 0 } }
    }

    /// The matrix, rotated when it is read. `kept` is shared by the weights of a model.
    ///
    /// # Panics
    ///
    /// If the rotation is of another size.
    pub fn rotated(self, rotation: WeightRotation, kept: Arc<RotatedWeights>) -> WeightMatrix<'a> {
        let (rows, columns) = (self.rows, self.columns);
        assert!(rotation.fits(rows, columns), "the rotation is not of a {rows}x{columns} matrix");
        let matrix = Arc::new(RotatedMatrix::new(self, rotation, kept));
        WeightMatrix { rows, columns, storage: Storage::Rotated { matrix, first_row: 0 } }
    }

    /// The rotation of the whole matrix, where it is one of a rotated model.
    pub fn rotation(&self) -> Option<&WeightRotation> {
        match &self.storage {
            Storage::Rotated { matrix, .. } => Some(matrix.rotation()),
            Storage::Packed { matrix, .. } => match &**matrix {
                PackedMatrix::Merged(merged) => merged.rotation(),
                _ => None,
            },
            _ => None,
        }
    }

    /// Some rows.
    pub fn slice_rows(&self, rows: ops::Range<usize>) -> WeightMatrix<'a> {
        let storage = match &self.storage {
            Storage::Plain { bytes, source, order } => {
                let row = self.columns * source.size();
                let bytes = match order {
                    Order::Rows => &bytes[rows.start * row..rows.end * row],
                    Order::Columns { .. } => &bytes[(rows.start * source.size()).min(bytes.len())..],
                };
                Storage::Plain { bytes, source: *source, order: *order }
            }
            Storage::Packed { matrix, first_row } => {
                Storage::Packed { matrix: Arc::clone(matrix), first_row: first_row + rows.start }
            }
            Storage::Values { values, first } => {
                Storage::Values { values: Arc::clone(values), first: first + rows.start * self.columns }
            }
            Storage::Quantized { tensor, first_row } => {
                Storage::Quantized { tensor: Arc::clone(tensor), first_row: first_row + rows.start }
            }
            Storage::Coded { matrix, first_row } => {
                Storage::Coded { matrix: Arc::clone(matrix), first_row: first_row + rows.start }
            }
            Storage::Folded { matrix, folding, first_row } => {
                let (matrix, folding) = (matrix.clone(), Arc::clone(folding));
                Storage::Folded { matrix, folding, first_row: first_row + rows.start }
            }
            Storage::Rotated { matrix, first_row } => {
                Storage::Rotated { matrix: Arc::clone(matrix), first_row: first_row + rows.start }
            }
        };
        WeightMatrix { rows: rows.len(), columns: self.columns, storage }
    }

    /// The elements as they are stored, where those are the values, row by row.
    pub fn elements(&self) -> Option<Elements<'_>> {
        match &self.storage {
            Storage::Plain { bytes, source, order: Order::Rows } => Elements::stored(*source, bytes),
            Storage::Values { values, first } => Some(Elements::Values(&values[*first..][..self.rows * self.columns])),
            _ => None,
        }
    }

    /// All elements as `f32`, row-major, read by all threads.
    pub fn all_values(&self, isa: Isa) -> Vec<f32> {
        let mut values = vec![0.0; self.rows * self.columns];
        let step = (STRIP / self.columns.max(1)).max(1);
        values.par_chunks_mut((step * self.columns).max(1)).enumerate().for_each_init(
            Vec::new,
            |part, (index, out)| {
                let start = index * step;
                part.clear();
                self.read(isa, &Band { rows: start..start + out.len() / self.columns, columns: 0..self.columns }, part);
                out.copy_from_slice(part);
            },
        );
        values
    }

    /// The elements of a band as `f32`, row-major, appended to `out`.
    pub fn read(&self, isa: Isa, band: &Band, out: &mut Vec<f32>) {
        let start = out.len();
        let below = |first_row: usize| Band {
            rows: band.rows.start + first_row..band.rows.end + first_row,
            columns: band.columns.clone(),
        };
        match &self.storage {
            Storage::Plain { bytes, source, order } => {
                out.resize(start + band.len(), 0.0);
                let out = &mut out[start..];
                match order {
                    Order::Rows => self.read_rows(isa, bytes, *source, band, out),
                    Order::Columns { stride } => read_transposed(isa, bytes, *source, *stride, band, out),
                }
            }
            Storage::Packed { matrix, first_row } => matrix.read(isa, &below(*first_row), out),
            Storage::Values { values, first } => {
                let rows = band.rows.clone().map(|row| &values[first + row * self.columns..][band.columns.clone()]);
                rows.for_each(|row| out.extend_from_slice(row));
            }
            Storage::Quantized { tensor, first_row } => {
                let Band { rows, columns } = below(*first_row);
                tensor.dequantize_rows(isa, rows, columns, out);
            }
            Storage::Coded { matrix, first_row } => read_coded(isa, matrix, &below(*first_row), out),
            Storage::Folded { matrix, folding, first_row } => {
                let band = below(*first_row);
                matrix.read(isa, &band, out);
                folding.apply(isa, &band, self.columns, &mut out[start..]);
            }
            Storage::Rotated { matrix, first_row } => matrix.read(isa, &below(*first_row), out),
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

    fn read_rows(&self, isa: Isa, bytes: &[u8], source: FloatDType, band: &Band, out: &mut [f32]) {
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
}

/// The elements of a band of floats stored by columns, `stride` elements apart.
fn read_transposed(isa: Isa, bytes: &[u8], source: FloatDType, stride: usize, band: &Band, out: &mut [f32]) {
    let size = source.size();
    let mut by_columns = vec![0.0; out.len()];
    for (column, line) in band.columns.clone().zip(by_columns.chunks_mut(band.rows.len().max(1))) {
        let start = (column * stride + band.rows.start) * size;
        widen(isa, source, &bytes[start..start + line.len() * size], line);
    }
    transpose(&by_columns, band.columns.len(), band.rows.len(), out);
}

/// The elements of a band of codes in memory.
fn read_coded(isa: Isa, matrix: &CodedMatrix, band: &Band, out: &mut Vec<f32>) {
    let width = matrix.shape().1;
    if band.columns == (0..width) {
        return matrix.read(isa, band.rows.clone(), out);
    }
    let mut whole = Vec::new();
    matrix.read(isa, band.rows.clone(), &mut whole);
    whole.chunks(width.max(1)).for_each(|row| out.extend_from_slice(&row[band.columns.clone()]));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(bytes: &[u8], is_transposed: bool) -> WeightMatrix<'_> {
        WeightMatrix::plain(bytes, FloatDType::F32, (3, 5), is_transposed)
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
    fn row_slices_of_a_matrix_read_correctly() {
        let plain = bytes((0..15).map(|i| i as f32));
        let mut out = vec![];
        matrix(&plain, false).slice_rows(1..3).read(Isa::best(), &Band { rows: 1..2, columns: 3..5 }, &mut out);
        assert_eq!(out, [13.0, 14.0]);
        let turned = bytes((0..15).map(|i| (i % 3 * 5 + i / 3) as f32));
        assert_eq!(read(&matrix(&turned, true), Band { rows: 1..3, columns: 3..5 }), [8.0, 9.0, 13.0, 14.0]);
        assert_eq!(
            matrix(&turned, true).slice_rows(1..3).slice_rows(1..2).all_values(Isa::best()),
            [10.0, 11.0, 12.0, 13.0, 14.0]
        );
    }

    /// The band and some rows of it, read as a separate matrix.
    fn read(matrix: &WeightMatrix<'_>, band: Band) -> Vec<f32> {
        let (mut whole, mut sliced) = (vec![], vec![]);
        matrix.read(Isa::best(), &band, &mut whole);
        let rows = matrix.slice_rows(band.rows.clone());
        rows.read(Isa::best(), &Band { rows: 0..band.rows.len(), columns: band.columns }, &mut sliced);
        assert!(whole.iter().map(|w| w.to_bits()).eq(sliced.iter().map(|w| w.to_bits())));
        whole
    }

    fn values() -> WeightMatrix<'static> {
        WeightMatrix::values(Arc::new((0..15).map(|i| i as f32 - 7.0).collect()), 3, 5)
    }

    #[test]
    fn in_memory_floats_are_read_unchanged() {
        assert_eq!(read(&values(), Band { rows: 1..3, columns: 3..5 }), [1.0, 2.0, 6.0, 7.0]);
        let rows = values().slice_rows(2..3);
        assert!(matches!(rows.elements(), Some(Elements::Values(&[3.0, 4.0, 5.0, 6.0, 7.0]))));
        assert_eq!(rows.slice_rows(0..1).range(Isa::best(), &Band { rows: 0..1, columns: 1..5 }).max, 7.0);
    }

    #[test]
    fn codes_are_dequantized_when_read() {
        let weights: Vec<f32> = (0..6 * 64).map(|i| (i % 37) as f32 - 11.0).collect();
        let context = kvant_quant::rounding::TensorContext::new(kvant_numeric::ComputeDType::F32);
        let rtn = kvant_quant::rounding::Rtn::new("uint4:g16:zp".parse().unwrap(), context).unwrap();
        let tensor = Arc::new(rtn.round(&weights, 6, 64).unwrap());
        let matrix = WeightMatrix::quantized(Arc::clone(&tensor));
        assert!(matrix.elements().is_none() && (matrix.rows, matrix.columns) == (6, 64));
        let expected: Vec<f32> = tensor.dequantize().chunks(64).skip(2).flat_map(|row| row[20..50].to_vec()).collect();
        assert_eq!(read(&matrix, Band { rows: 2..6, columns: 20..50 }), expected);
    }

    #[test]
    fn folded_matrix_is_scaled_and_clipped_when_read() {
        let limits =
            ClippingThresholds { group: 2, values: vec![f32::INFINITY, 9.0, 0.5, 2.0, 0.0, 1.0, 3.0, 100.0, 4.0] };
        let folding = WeightTransform {
            rows: Some(vec![2.0, 1.0, -0.5]),
            columns: Some(vec![1.0, 2.0, 3.0, 0.5, 1.5]),
            limits: Some(limits),
        };
        let whole = [-14.0, -24.0, -9.0, -4.0, -0.5, -2.0, -2.0, 0.0, 0.0, 1.0, -1.5, -3.0, -7.5, -1.5, -4.0];
        let turned = bytes((0..15).map(|i| (i % 3 * 5 + i / 3) as f32 - 7.0));
        for matrix in [values(), matrix(&turned, true)] {
            let folded = matrix.folded(Arc::new(folding.clone()));
            assert!(folded.elements().is_none());
            for (rows, columns) in [(0..3, 0..5), (1..3, 0..5), (0..2, 3..5), (2..3, 1..4)] {
                let expected = rows.clone().flat_map(|row| whole[row * 5..][columns.clone()].to_vec());
                assert_eq!(
                    read(&folded, Band { rows: rows.clone(), columns: columns.clone() }),
                    expected.collect::<Vec<_>>()
                );
            }
        }
        let twice = values().folded(Arc::new(folding.clone())).folded(Arc::new(WeightTransform::default()));
        assert_eq!(read(&twice, Band { rows: 0..3, columns: 0..5 }), whole);
    }

    #[test]
    fn folding_keeps_nan_visible() {
        let limits = ClippingThresholds { group: 1, values: vec![1.0] };
        let folding = Arc::new(WeightTransform { limits: Some(limits), ..WeightTransform::default() });
        let matrix = WeightMatrix::values(Arc::new(vec![f32::NAN]), 1, 1).folded(folding);
        assert!(read(&matrix, Band { rows: 0..1, columns: 0..1 })[0].is_nan());
    }

    #[test]
    #[should_panic(expected = "not of a 3x5 matrix")]
    fn folding_of_another_size_panics() {
        let _ = values().folded(Arc::new(WeightTransform { rows: Some(vec![1.0; 4]), ..WeightTransform::default() }));
    }
}
