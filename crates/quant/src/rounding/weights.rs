//! The weights that are rounded: elements as they come, in rows that may stand apart. Not where they come from.

use kvant_numeric::kernel::{Elements, widen_elements};
use kvant_numeric::simd::Isa;
use std::ops::Range;

/// A row-major matrix of weights, or some columns of one.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    elements: Elements<'a>,
    rows: usize,
    columns: usize,
    stride: usize,
    importance: Option<&'a [f32]>,
}

impl<'a> Weights<'a> {
    /// A matrix of `columns` whose rows follow one another.
    pub fn new(elements: Elements<'a>, columns: usize) -> Weights<'a> {
        let rows = elements.len().checked_div(columns).unwrap_or(0);
        Weights { elements, rows, columns, stride: columns, importance: None }
    }

    /// A matrix of known shape, which may have no columns.
    pub fn of_shape(elements: Elements<'a>, rows: usize, columns: usize) -> Weights<'a> {
        Weights { elements, rows, columns, stride: columns, importance: None }
    }

    /// The same, where a searched scale weighs the errors of each column: by the mean square of what it is multiplied by, or
    /// anything in proportion to it.
    pub fn weighed_by(self, importance: &'a [f32]) -> Weights<'a> {
        Weights { importance: Some(importance), ..self }
    }

    /// The weight of each column's errors.
    pub(super) fn importance(&self) -> Option<&'a [f32]> {
        self.importance
    }

    /// Some columns of the matrix.
    pub fn columns(self, columns: Range<usize>) -> Weights<'a> {
        let end = self.elements.len().min((self.rows.saturating_sub(1)) * self.stride + columns.end);
        let elements = self.elements.slice(columns.start.min(end)..end);
        let importance = self.importance.and_then(|importance| importance.get(columns.clone()));
        Weights { elements, importance, columns: columns.len(), ..self }
    }

    /// Some rows of the matrix.
    pub fn rows(self, rows: Range<usize>) -> Weights<'a> {
        let end = self.elements.len().min(rows.end * self.stride);
        let elements = self.elements.slice((rows.start * self.stride).min(end)..end);
        Weights { elements, rows: rows.len(), ..self }
    }

    /// Rows and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// The elements of some rows: as they come where they follow one another, else widened into `buffer`.
    pub(super) fn elements<'b>(&self, isa: Isa, rows: Range<usize>, buffer: &'b mut Vec<f32>) -> Elements<'b>
    where
        'a: 'b,
    {
        if self.stride == self.columns {
            return self.elements.slice(rows.start * self.stride..rows.end * self.stride);
        }
        buffer.resize(rows.len() * self.columns, 0.0);
        let ahead = rows.len();
        let row_elements = |row: usize| self.elements.slice(row * self.stride..row * self.stride + self.columns);
        for (row, out) in rows.zip(buffer.chunks_mut(self.columns.max(1))) {
            // Rows stand too far apart for the processor to see a sequence.
            if row + ahead < self.rows {
                row_elements(row + ahead).prefetch();
            }
            widen_elements(isa, row_elements(row), out);
        }
        Elements::Values(buffer)
    }
}
