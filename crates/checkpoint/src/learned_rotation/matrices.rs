//! The learned matrices of one step in f32: applied to weights and rows, and the sums of their gradients.
//!
//! With `R` a matrix and `f` the loss, the gradient that steps follow is `M = R' df/dR`, of `f(R (I + A)) ~ f(R) + <A, M>`. Whatever is
//! rotated adds a product to it: rows `x R` add `x' df/dx`, inputs of a layer `(df/dy W)' x`, its outputs `y' df/dy`.

use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, multiply, multiply_add};
use kvant_quant::rotation::{BlockDiagonal, RotationPlace};
use std::collections::BTreeMap;
use std::ops::Range;

/// A block-diagonal matrix.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StepMatrix {
    size: usize,
    blocks: Vec<Vec<f32>>,
}

impl StepMatrix {
    pub fn of(matrix: &BlockDiagonal) -> StepMatrix {
        let narrow = |block: &Vec<f64>| block.iter().map(|element| *element as f32).collect();
        StepMatrix { size: matrix.size(), blocks: matrix.blocks().iter().map(narrow).collect() }
    }

    pub fn channels(&self) -> usize {
        self.size * self.blocks.len()
    }

    /// `x R` for rows `x` of all channels, one after the other.
    pub fn forward(&self, rows: &[f32]) -> Vec<f32> {
        self.times(rows, false)
    }

    /// `x R'`, which undoes it.
    pub fn back(&self, rows: &[f32]) -> Vec<f32> {
        self.times(rows, true)
    }

    fn times(&self, rows: &[f32], transposed: bool) -> Vec<f32> {
        let (channels, size) = (self.channels(), self.size);
        let (count, mut out) = (rows.len() / channels, vec![0.0; rows.len()]);
        for (block, start) in self.blocks.iter().zip((0..channels).step_by(size)).filter(|_| count > 0) {
            let matrix = Matrix::new(block, size, size, size);
            let matrix = if transposed { matrix.transposed() } else { matrix };
            let read = Matrix::new(&rows[start..], count, size, channels);
            multiply(MatrixMut::new(&mut out[start..], count, size, channels), read, matrix, 1.0, Threads::Pool);
        }
        out
    }

    /// `R' W` for some rows of a weight, each range of which has a multiple of all channels.
    pub fn on_outputs(&self, weight: &mut [f32], columns: usize, ranges: &[Range<usize>]) {
        let size = self.size;
        for (block, rows) in self.runs(ranges) {
            let part = &mut weight[rows * columns..(rows + size) * columns];
            let before = part.to_vec();
            let matrix = Matrix::new(block, size, size, size).transposed();
            let before = Matrix::new(&before, size, columns, columns);
            multiply(MatrixMut::new(part, size, columns, columns), matrix, before, 1.0, Threads::Pool);
        }
    }

    /// The blocks with the channels that each mixes, as often as all channels follow each other in the ranges.
    fn runs(&self, ranges: &[Range<usize>]) -> Vec<(&Vec<f32>, usize)> {
        let starts = ranges.iter().flat_map(|range| range.clone().step_by(self.channels()));
        starts.flat_map(|start| self.blocks.iter().zip((start..).step_by(self.size))).collect()
    }
}

/// Rows of so many elements.
#[derive(Clone, Copy)]
pub(super) struct GradientRows<'r> {
    pub data: &'r [f32],
    pub width: usize,
}

/// The sums of gradients by place.
pub(super) struct GradientSums(BTreeMap<RotationPlace, StepMatrix>);

impl GradientSums {
    /// Nothing yet, of these matrices.
    pub fn of(matrices: &BTreeMap<RotationPlace, StepMatrix>) -> GradientSums {
        let empty = |matrix: &StepMatrix| StepMatrix {
            blocks: vec![vec![0.0; matrix.size * matrix.size]; matrix.blocks.len()],
            ..*matrix
        };
        GradientSums(matrices.iter().map(|(place, matrix)| (*place, empty(matrix))).collect())
    }

    /// Adds `left' right`, of those channels of their rows that the ranges name, which are rotated at a place.
    pub fn add(&mut self, place: RotationPlace, [left, right]: [GradientRows<'_>; 2], ranges: &[Range<usize>]) {
        let Some(sums) = self.0.get_mut(&place) else { return };
        let (size, channels, count) = (sums.size, sums.channels(), left.data.len() / left.width.max(1));
        if count == 0 {
            return;
        }
        for start in ranges.iter().flat_map(|range| range.clone().step_by(channels)) {
            for (block, start) in sums.blocks.iter_mut().zip((start..).step_by(size)) {
                let left = Matrix::new(&left.data[start..], count, size, left.width).transposed();
                let right = Matrix::new(&right.data[start..], count, size, right.width);
                multiply_add(MatrixMut::new(block, size, size, size), left, right, 1.0, Threads::Pool);
            }
        }
    }

    /// The same of all channels of their rows.
    pub fn add_rows(&mut self, place: RotationPlace, both: [GradientRows<'_>; 2]) {
        let all = 0..both[0].width;
        self.add(place, both, std::slice::from_ref(&all));
    }

    /// The sums times a factor, block by block.
    pub fn of_place(&self, place: RotationPlace, factor: f64) -> Vec<Vec<f64>> {
        let widen = |block: &Vec<f32>| block.iter().map(|element| factor * f64::from(*element)).collect();
        self.0.get(&place).map_or_else(Vec::new, |sums| sums.blocks.iter().map(widen).collect())
    }
}

/// The sum of rows.
pub(super) fn column_sums(rows: GradientRows<'_>) -> Vec<f32> {
    let mut sums = vec![0.0; rows.width];
    for row in rows.data.chunks_exact(rows.width.max(1)) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix() -> StepMatrix {
        let turned = |angle: f64| vec![angle.cos(), angle.sin(), -angle.sin(), angle.cos()];
        StepMatrix::of(&BlockDiagonal::of_blocks(2, vec![turned(0.3), turned(-1.1)]).unwrap())
    }

    #[test]
    fn rotated_inputs_and_outputs_cancel() {
        let (matrix, columns) = (matrix(), 4);
        let weight: Vec<f32> = (0..8 * columns).map(|i| ((i * 7) % 11) as f32 - 5.0).collect();
        let x = [1.0, -2.0, 0.5, 3.0];
        let product = |weight: &[f32], x: &[f32]| -> Vec<f32> {
            weight.chunks(columns).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
        };
        let expected = product(&weight, &x);
        let mut rotated = matrix.forward(&weight);
        matrix.on_outputs(&mut rotated, columns, &[0..4, 4..8]);
        let found = matrix.back(&product(&rotated, &matrix.forward(&x)));
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4), "{found:?} {expected:?}");
    }
}
