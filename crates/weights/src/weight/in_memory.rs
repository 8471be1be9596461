//! Matrices that are read over and over, as a decoder's are for every token: brought into memory once, in the form in which products
//! read them fastest. Values stay the same, bit for bit.

use super::{CodeMatrix, Order, PackedMatrix, Storage, WeightMatrix};
use crate::band::Band;
use kvant_numeric::linalg::{CodedMatrix, CodedScales};
use kvant_numeric::simd::Isa;
use std::sync::Arc;

/// The form in which a matrix is read fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastForm {
    /// As it is stored: its rows follow each other, and little is computed to read them.
    Stored,
    /// Codes and scales in memory, of this many bytes.
    Codes(u64),
    /// Floats in memory, of this many bytes.
    Values(u64),
}

impl<'a> WeightMatrix<'a> {
    /// The form in which the matrix is read fastest.
    pub fn fast_form(&self) -> FastForm {
        let values = FastForm::Values((self.rows * self.columns) as u64 * 4);
        match &self.storage {
            Storage::Plain { order: Order::Rows, .. } | Storage::Values { .. } | Storage::Coded { .. } => {
                FastForm::Stored
            }
            Storage::Packed { matrix, first_row: 0 } => match &**matrix {
                PackedMatrix::Apart(codes) => codes.coded_bytes().map_or(values, FastForm::Codes),
                PackedMatrix::Blocks(blocks) if blocks.is_by_rows() => FastForm::Stored,
                PackedMatrix::Blocks(_) | PackedMatrix::Merged(_) => values,
            },
            _ => values,
        }
    }

    /// The matrix in its fastest form, read by all threads.
    pub fn in_fast_form(&self, isa: Isa) -> WeightMatrix<'a> {
        if let (FastForm::Codes(_), Storage::Packed { matrix, .. }) = (self.fast_form(), &self.storage)
            && let PackedMatrix::Apart(codes) = &**matrix
        {
            let storage = Storage::Coded { matrix: Arc::new(codes.coded(isa)), first_row: 0 };
            return WeightMatrix { rows: self.rows, columns: self.columns, storage };
        }
        match self.fast_form() {
            FastForm::Stored => self.clone(),
            _ => WeightMatrix::values(Arc::new(self.all_values(isa)), self.rows, self.columns),
        }
    }

    /// The codes in memory that the matrix is rows of, and the first of these rows, if it is in that form.
    pub fn coded(&self) -> Option<(&CodedMatrix, usize)> {
        match &self.storage {
            Storage::Coded { matrix, first_row } => Some((matrix, *first_row)),
            _ => None,
        }
    }
}

impl CodeMatrix<'_> {
    /// Bytes of the matrix as [`CodedMatrix`]; `None` where that does not hold it.
    fn coded_bytes(&self) -> Option<u64> {
        let is_plain = self.groups.is_none() && self.factor.is_of_scales() && self.columns > 0;
        let takes = is_plain && CodedMatrix::takes(self.columns, self.tile);
        let scales = self.rows.div_ceil(self.tile.0.max(1)) * self.columns.div_ceil(self.tile.1.max(1));
        takes.then(|| (CodedMatrix::code_bytes(self.kind, (self.rows, self.columns)) + 8 * scales) as u64)
    }

    fn coded(&self, isa: Isa) -> CodedMatrix {
        let tiles = self.tiles(&Band { rows: 0..self.rows, columns: 0..self.columns });
        let scales = self.effective_scales(isa, &tiles);
        let zero_points = self.zero_points.map(|points| points.read(isa, &tiles, &scales)).unwrap_or_default();
        let scales = CodedScales { scales, zero_points, tile: self.tile };
        CodedMatrix::new(self.kind, (self.rows, self.columns), scales, |rows, out| {
            out.copy_from_slice(&self.codes.read(isa, rows, 0..self.columns));
        })
    }
}
