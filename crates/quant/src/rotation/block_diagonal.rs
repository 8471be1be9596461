//! An orthogonal matrix of square blocks on the diagonal, element by element: what is learned of a rotation.

use super::apart;
use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, multiply};

/// A matrix that mixes groups of `size` channels, each by a block of its own; of one block where all channels are mixed. Vectors are rows,
/// and are multiplied by it from the right.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockDiagonal {
    size: usize,
    blocks: Vec<Vec<f64>>,
}

impl BlockDiagonal {
    /// The identity of so many channels in blocks of `size`; `None` where blocks do not divide the channels, or there are none.
    pub fn identity(channels: usize, size: usize) -> Option<BlockDiagonal> {
        if size == 0 || channels == 0 || !channels.is_multiple_of(size) {
            return None;
        }
        Some(BlockDiagonal { size, blocks: vec![identity(size); channels / size] })
    }

    /// Of blocks of `size x size` elements, row by row; `None` where one has more or fewer.
    pub fn of_blocks(size: usize, blocks: Vec<Vec<f64>>) -> Option<BlockDiagonal> {
        let fits = size > 0 && !blocks.is_empty() && blocks.iter().all(|block| block.len() == size * size);
        fits.then_some(BlockDiagonal { size, blocks })
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.size * self.blocks.len()
    }

    /// Channels of a block.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The elements of each block, row by row.
    pub fn blocks(&self) -> &[Vec<f64>] {
        &self.blocks
    }

    pub(super) fn blocks_mut(&mut self) -> &mut [Vec<f64>] {
        &mut self.blocks
    }

    /// The largest element of `B' B - I` over all blocks `B`: how far the matrix is from an orthogonal one.
    pub fn departure(&self) -> f64 {
        let of_block = |block: &Vec<f64>| {
            let b = Matrix::new(block, self.size, self.size, self.size);
            let mut product = vec![0.0; block.len()];
            multiply(square(&mut product, self.size), b.transposed(), b, 1.0, Threads::Pool);
            apart(&product, &identity(self.size))
        };
        self.blocks.iter().map(of_block).fold(0.0, f64::max)
    }

    /// Multiplies rows of [`channels`](Self::channels) elements, which follow one another. `scratch` may hold anything.
    pub(super) fn apply_to_rows(&self, rows: &mut [f64], scratch: &mut Vec<f64>) {
        let (channels, size) = (self.channels(), self.size);
        let count = rows.len() / channels;
        scratch.clear();
        scratch.extend_from_slice(rows);
        for (block, start) in self.blocks.iter().zip((0..channels).step_by(size)) {
            if count == 0 {
                return;
            }
            let place = MatrixMut::new(&mut rows[start..], count, size, channels);
            let read = Matrix::new(&scratch[start..], count, size, channels);
            multiply(place, read, Matrix::new(block, size, size, size), 1.0, Threads::One);
        }
    }

    /// Multiplies so many vectors at once, whose elements of one channel stand side by side.
    pub(super) fn apply_side_by_side(&self, vectors: &mut [f64], count: usize, scratch: &mut Vec<f64>) {
        let size = self.size;
        scratch.clear();
        scratch.extend_from_slice(vectors);
        let parts = vectors.chunks_exact_mut(size * count).zip(scratch.chunks_exact(size * count));
        for (block, (place, read)) in self.blocks.iter().zip(parts) {
            let turned = Matrix::new(block, size, size, size).transposed();
            multiply(
                MatrixMut::new(place, size, count, count),
                turned,
                Matrix::new(read, size, count, count),
                1.0,
                Threads::One,
            );
        }
    }
}

/// The identity, row by row.
pub(super) fn identity(size: usize) -> Vec<f64> {
    (0..size * size).map(|at| if at / size == at % size { 1.0 } else { 0.0 }).collect()
}

/// A square matrix to be written.
pub(super) fn square(elements: &mut [f64], size: usize) -> MatrixMut<'_, f64> {
    MatrixMut::new(elements, size, size, size)
}
