//! The lower half of a square matrix, in rows of blocks: what symmetric matrices and triangular factors are stored as.
//! Not how either is computed.

use std::ops::Range;

/// The lower half of a `size x size` matrix, cut into blocks of `side`. Block row `b` holds the matrix rows from
/// `b * side` up to the next block row and all columns up to the end of the block on the diagonal, as one row-major
/// matrix whose rows are `columns` apart; block rows follow one another. Elements above the diagonal within the blocks
/// on it are stored too, with values set by their owner.
///
/// It takes `size * (size + side) / 2` elements where `side` divides `size`, little more than half the matrix, and every
/// block row is a matrix that a product takes as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct LowerBlocks {
    size: usize,
    side: usize,
    elements: Vec<f32>,
}

/// The place of a block row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRow {
    /// The rows of the matrix that it holds.
    pub rows: Range<usize>,
    /// Its columns, from the first of the matrix: as many as the rows end at.
    pub columns: usize,
    elements: Range<usize>,
}

impl BlockRow {
    /// The place of some of the rows.
    ///
    /// # Panics
    /// If a row is not one of these.
    pub fn part(&self, rows: Range<usize>) -> BlockRow {
        assert!(self.rows.start <= rows.start && rows.end <= self.rows.end, "{rows:?} of {:?}", self.rows);
        let start = self.elements.start + (rows.start - self.rows.start) * self.columns;
        let elements = start..start + rows.len() * self.columns;
        BlockRow { rows, columns: self.columns, elements }
    }
}

impl LowerBlocks {
    /// A matrix of zeros. `side` is at least 1.
    pub fn zeros(size: usize, side: usize) -> LowerBlocks {
        let side = side.max(1);
        let length = block_rows(size, side).map(|row| row.elements.len()).sum();
        LowerBlocks { size, side, elements: vec![0.0; length] }
    }

    /// Rows, and columns, of the matrix.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The places of the block rows, from the top.
    pub fn block_rows(&self) -> impl Iterator<Item = BlockRow> + use<> {
        block_rows(self.size, self.side)
    }

    /// The elements of a block row.
    pub fn block_row(&self, row: &BlockRow) -> &[f32] {
        &self.elements[row.elements.clone()]
    }

    /// The elements of a block row, to be written.
    pub fn block_row_mut(&mut self, row: &BlockRow) -> &mut [f32] {
        &mut self.elements[row.elements.clone()]
    }

    /// All block rows with their elements, to be written by several threads.
    pub fn split_mut(&mut self) -> Vec<(BlockRow, &mut [f32])> {
        let mut rest = self.elements.as_mut_slice();
        let mut split = Vec::new();
        for place in block_rows(self.size, self.side) {
            let (elements, after) = rest.split_at_mut(place.elements.len());
            rest = after;
            split.push((place, elements));
        }
        split
    }

    /// All elements, block row after block row, as stored on disk.
    pub fn elements(&self) -> &[f32] {
        &self.elements
    }

    /// All elements, to be written.
    pub fn elements_mut(&mut self) -> &mut [f32] {
        &mut self.elements
    }

    /// Row `row` up to and including the diagonal.
    pub fn row(&self, row: usize) -> &[f32] {
        let start = self.start(row);
        &self.elements[start..start + row + 1]
    }

    /// Row `row` up to and including the diagonal, to be written.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let start = self.start(row);
        &mut self.elements[start..start + row + 1]
    }

    /// All rows up to and including the diagonal, to be written by several threads.
    pub fn rows_mut(&mut self) -> Vec<&mut [f32]> {
        let rows = self.split_mut().into_iter().flat_map(|(place, elements)| {
            place.rows.zip(elements.chunks_mut(place.columns)).map(|(row, elements)| &mut elements[..=row])
        });
        rows.collect()
    }

    /// The element of a symmetric matrix, whichever half it is in.
    pub fn symmetric(&self, row: usize, column: usize) -> f32 {
        self.elements[self.start(row.max(column)) + row.min(column)]
    }

    /// Where row `row` starts among the [`elements`](Self::elements).
    pub fn start(&self, row: usize) -> usize {
        let place = place(self.size, self.side, row / self.side);
        place.elements.start + (row - place.rows.start) * place.columns
    }
}

fn block_rows(size: usize, side: usize) -> impl Iterator<Item = BlockRow> {
    (0..size.div_ceil(side)).map(move |block| place(size, side, block))
}

fn place(size: usize, side: usize, block: usize) -> BlockRow {
    let first = block * side;
    let end = (first + side).min(size);
    // All block rows above are whole: 1 + 2 + ... + block squares.
    let start = side * side * (block * (block + 1) / 2);
    BlockRow { rows: first..end, columns: end, elements: start..start + (end - first) * end }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_its_own_position() {
        for (size, side) in [(0, 4), (1, 4), (8, 4), (11, 4), (3, 1), (7, 100)] {
            let mut blocks = LowerBlocks::zeros(size, side);
            for row in 0..size {
                for (column, element) in blocks.row_mut(row).iter_mut().enumerate() {
                    assert_eq!(*element, 0.0);
                    *element = (row * size + column + 1) as f32;
                }
            }
            for (row, elements) in blocks.clone().rows_mut().into_iter().enumerate() {
                assert_eq!(elements, blocks.row(row));
            }
            for row in 0..size {
                for column in 0..size {
                    let (low, high) = (row.min(column), row.max(column));
                    assert_eq!(blocks.symmetric(row, column), (high * size + low + 1) as f32);
                }
            }
        }
    }

    #[test]
    fn block_rows_are_contiguous_matrices() {
        let mut blocks = LowerBlocks::zeros(11, 4);
        for row in 0..11 {
            blocks.row_mut(row).fill(row as f32 + 1.0);
        }
        let mut end = 0;
        let split: Vec<_> =
            blocks.clone().split_mut().into_iter().map(|(place, block)| (place, block.to_vec())).collect();
        for (place, part) in split {
            let block = blocks.block_row(&place);
            assert_eq!(block.as_ptr(), blocks.elements()[end..].as_ptr());
            assert_eq!(block, part);
            let last = place.part(place.rows.end - 1..place.rows.end);
            assert_eq!(blocks.block_row(&last)[..last.rows.end], *blocks.row(last.rows.start));
            for (row, elements) in place.rows.clone().zip(block.chunks(place.columns)) {
                assert!(elements[..=row].iter().all(|e| *e == row as f32 + 1.0));
            }
            end += block.len();
        }
        assert_eq!(end, blocks.elements().len());
    }
}
