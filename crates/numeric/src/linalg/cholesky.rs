//! The Cholesky factor of a symmetric positive definite matrix, taken from the last row to the first, in f64: the matrices
//! of calibration have condition numbers of 1e6, which would leave an f32 factor one digit. Products and the factors of
//! blocks are those of the `faer` crate. Not the damping that makes a matrix positive definite, which is its owner's.

use super::lower_blocks::LowerBlocks;
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::{LltError, cholesky_in_place, cholesky_in_place_scratch};
use faer::linalg::matmul::matmul;
use faer::linalg::triangular_solve::solve_upper_triangular_in_place;
use faer::{Accum, MatMut, MatRef, Par, Spec};
use rayon::prelude::*;
use std::ops::Range;

/// Rows of a panel. The cuts decide the order of sums, whatever the number of threads.
const SIDE: usize = 256;

/// The matrix has no Cholesky factor: to f64's precision it is not positive definite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the matrix is not positive definite: pivot {pivot} is not positive")]
pub struct NotPositiveDefinite {
    /// The last row whose pivot is not a positive number.
    pub pivot: usize,
}

/// The lower triangular `N` of `A = N^T N`: with rows and columns backwards, the usual factor. It takes
/// `4 size (size + 256)` bytes, and so does finding it.
#[derive(Clone, Debug)]
pub struct Cholesky {
    size: usize,
    /// Panels of 256 rows, row-major, each up to the end of its square on the diagonal. What lies above the diagonal means
    /// nothing.
    panels: Vec<Vec<f64>>,
}

impl Cholesky {
    /// Factors a `size x size` matrix. `fill` is called for every panel of rows, and writes the elements of these rows, row
    /// by row, each up to the end of the panel's rows, of which those up to the diagonal are read. All threads of the
    /// current rayon pool take part; the factor does not depend on their number.
    ///
    /// # Errors
    /// [`NotPositiveDefinite`], which a NaN in the matrix is too.
    pub fn factor(
        size: usize,
        fill: impl Fn(Range<usize>, &mut [f64]) + Sync,
    ) -> Result<Cholesky, NotPositiveDefinite> {
        let rows = |panel: usize| panel * SIDE..((panel + 1) * SIDE).min(size);
        let filled = |panel| {
            let rows = rows(panel);
            let mut elements = vec![0.0; rows.len() * rows.end];
            fill(rows, &mut elements);
            elements
        };
        let mut panels: Vec<Vec<f64>> = (0..size.div_ceil(SIDE)).into_par_iter().map(filled).collect();
        for index in (0..panels.len()).rev() {
            let (upper, lower) = panels.split_at_mut(index + 1);
            let (rows, lower) = (rows(index), Lower { first: rows(index + 1).start, size, panels: lower });
            lower.factor(rows.clone(), view_mut(&mut upper[index], &rows))?;
        }
        Ok(Cholesky { size, panels })
    }

    /// Rows, and columns, of the matrix.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The diagonal element `N_ii`.
    pub fn pivot(&self, i: usize) -> f64 {
        self.row(i)[i]
    }

    /// Row `row` of `N` up to and including the diagonal.
    pub fn row(&self, row: usize) -> &[f64] {
        let panel = &self.panels[row / SIDE];
        let width = ((row / SIDE + 1) * SIDE).min(self.size);
        &panel[row % SIDE * width..][..row + 1]
    }

    /// Rows divided by their pivots, `N_ij / N_ii` for `j < i`, and zeros from the diagonal on, in blocks of `side`.
    pub fn into_unit_rows(self, side: usize) -> LowerBlocks {
        let mut blocks = LowerBlocks::zeros(self.size, side);
        let mut rows = blocks.rows_mut();
        let panels = rows.par_chunks_mut(SIDE).zip(self.panels).enumerate();
        panels.for_each(|(index, (rows, panel))| {
            let width = panel.len() / rows.len();
            for (i, (row, elements)) in rows.iter_mut().zip(panel.chunks(width)).enumerate() {
                let before = index * SIDE + i;
                let inverse = 1.0 / elements[before];
                row[..before].iter_mut().zip(elements).for_each(|(out, element)| *out = (element * inverse) as f32);
            }
        });
        blocks
    }

    /// Solves `N^T X = B` in place, on the calling thread: columns of `size` elements follow one another.
    ///
    /// # Panics
    /// If the last column is not whole.
    pub fn solve_transposed(&self, columns: &mut [f64]) {
        let count = columns.len().checked_div(self.size).unwrap_or(0);
        for (index, panel) in self.panels.iter().enumerate().rev() {
            let rows = index * SIDE..((index + 1) * SIDE).min(self.size);
            let (before, own) = view(panel, &rows).split_at_col(rows.start);
            let x = MatMut::from_column_major_slice_mut(&mut *columns, self.size, count);
            let (earlier, x) = x.split_at_row_mut(rows.start);
            let mut x = x.subrows_mut(0, rows.len());
            solve_upper_triangular_in_place(own.transpose(), x.as_mut(), Par::Seq);
            matmul(earlier, Accum::Add, before.transpose(), x.as_ref(), -1.0, Par::Seq);
        }
    }
}

/// A panel as a matrix.
fn view<'a>(panel: &'a [f64], rows: &Range<usize>) -> MatRef<'a, f64> {
    MatRef::from_row_major_slice(panel, rows.len(), rows.end)
}

fn view_mut<'a>(panel: &'a mut [f64], rows: &Range<usize>) -> MatMut<'a, f64> {
    MatMut::from_row_major_slice_mut(panel, rows.len(), rows.end)
}

/// The panels below one, which are done.
struct Lower<'a> {
    first: usize,
    size: usize,
    panels: &'a [Vec<f64>],
}

impl Lower<'_> {
    /// Makes a panel of `N` of the panel `rows` of the matrix.
    fn factor(&self, rows: Range<usize>, panel: MatMut<'_, f64>) -> Result<(), NotPositiveDefinite> {
        let (mut before, mut square) = panel.split_at_col_mut(rows.start);
        let of_square = || {
            self.subtract(&rows, rows.start, square.as_mut());
            factor_square(square.as_mut()).map_err(|row| NotPositiveDefinite { pivot: rows.start + row })
        };
        let of_others = || {
            let tiles = before.as_mut().par_col_chunks_mut(SIDE).enumerate();
            tiles.for_each(|(tile, elements)| self.subtract(&rows, tile * SIDE, elements));
        };
        rayon::join(of_square, of_others).0?;
        let square = square.as_ref().transpose();
        before.par_col_chunks_mut(SIDE).for_each(|tile| solve_upper_triangular_in_place(square, tile, Par::Seq));
        Ok(())
    }

    /// Takes what the panels below make up of the tile whose first column is `column`: `sum_m N_mk^T N_mj`.
    fn subtract(&self, rows: &Range<usize>, column: usize, mut tile: MatMut<'_, f64>) {
        for (index, panel) in self.panels.iter().enumerate() {
            let start = self.first + index * SIDE;
            let below = view(panel, &(start..(start + SIDE).min(self.size)));
            let (left, right) = (below.subcols(rows.start, rows.len()), below.subcols(column, tile.ncols()));
            matmul(tile.as_mut(), Accum::Add, left.transpose(), right, -1.0, Par::Seq);
        }
    }
}

/// Factors a square on the diagonal: backwards, its rows are the columns that the library wants. Gives the row whose pivot
/// is not a positive number where there is one.
fn factor_square(mut square: MatMut<'_, f64>) -> Result<(), usize> {
    let (size, last, params) = (square.nrows(), square.nrows().saturating_sub(1), Spec::default());
    let mut columns: Vec<f64> = (0..size * size).map(|i| square[(last - i / size, last - i % size)]).collect();
    let mut memory = MemBuffer::new(cholesky_in_place_scratch::<f64>(size, Par::Seq, params));
    let matrix = MatMut::from_column_major_slice_mut(&mut columns, size, size);
    let factored = cholesky_in_place(matrix, Default::default(), Par::Seq, MemStack::new(&mut memory), params);
    factored.map_err(|LltError::NonPositivePivot { index }| last - index)?;
    let is_positive = |i: &usize| columns[i * size + i] > 0.0 && columns[i * size + i].is_finite();
    if let Some(broken) = (0..size).find(|i| !is_positive(i)) {
        return Err(last - broken);
    }
    (0..size * size).for_each(|i| square[(last - i / size, last - i % size)] = columns[i]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `G G^T + I` of a matrix `G` without structure.
    fn positive(size: usize) -> Vec<f64> {
        let g: Vec<f64> = (0..size * size).map(|i| ((i * 7919 + i / 13) % 1009) as f64 / 1009.0 - 0.5).collect();
        let dot =
            |i: usize, j: usize| g[i * size..][..size].iter().zip(&g[j * size..]).map(|(a, b)| a * b).sum::<f64>();
        (0..size * size).map(|e| dot(e % size, e / size) + f64::from(u8::from(e % size == e / size))).collect()
    }

    fn factor(matrix: &[f64], size: usize) -> Result<Cholesky, NotPositiveDefinite> {
        Cholesky::factor(size, |rows, out| {
            let width = rows.end;
            for (row, out) in rows.zip(out.chunks_mut(width)) {
                out[..row + 1].copy_from_slice(&matrix[row * size..][..row + 1]);
                out[row + 1..].fill(f64::NAN);
            }
        })
    }

    #[test]
    fn the_factor_times_itself_is_the_matrix() {
        for size in [1, 2, 17, 255, 256, 300, 530] {
            let matrix = positive(size);
            let factor = factor(&matrix, size).unwrap();
            for row in (0..size).step_by(1 + size / 60) {
                for column in (0..=row).step_by(1 + size / 70) {
                    let sum: f64 = (row..size).map(|k| factor.row(k)[row] * factor.row(k)[column]).sum();
                    assert!((sum - matrix[row * size + column]).abs() < 1e-12 * size as f64, "{size} {row} {column}");
                }
            }
        }
        assert_eq!(factor(&[], 0).unwrap().size(), 0);
    }

    #[test]
    fn unit_rows_are_rows_divided_by_their_pivots() {
        for (size, side) in [(1, 128), (300, 128), (530, 100)] {
            let factor = factor(&positive(size), size).unwrap();
            let blocks = factor.clone().into_unit_rows(side);
            for row in 0..size {
                let (own, before) = blocks.row(row).split_last().unwrap();
                let pairs = before.iter().zip(factor.row(row));
                assert!(pairs.clone().all(|(unit, n)| (f64::from(*unit) - n / factor.pivot(row)).abs() < 1e-6));
                assert_eq!((*own, before.len()), (0.0, row));
            }
        }
    }

    #[test]
    fn triangular_systems_are_solved() {
        for size in [33, 300] {
            let factor = factor(&positive(size), size).unwrap();
            let right: Vec<f64> = (0..size * 3).map(|i| (i as f64).sin()).collect();
            let mut solved = right.clone();
            factor.solve_transposed(&mut solved);
            for (x, b) in solved.chunks(size).zip(right.chunks(size)) {
                for (row, b) in b.iter().enumerate() {
                    let sum: f64 = (row..size).map(|k| factor.row(k)[row] * x[k]).sum();
                    assert!((sum - b).abs() < 1e-10, "{size} {row}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_positive_definite_is_said() {
        for (size, pivot) in [(20, 7), (300, 7), (300, 290)] {
            for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
                let mut matrix = positive(size);
                for i in 0..size {
                    (matrix[pivot * size + i], matrix[i * size + pivot]) = (0.0, 0.0);
                }
                matrix[pivot * size + pivot] = bad;
                assert_eq!(factor(&matrix, size).unwrap_err(), NotPositiveDefinite { pivot }, "{bad}");
            }
        }
    }

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        let size = 1000;
        let matrix: Vec<f64> = (0..size * size)
            .map(|e| if e / size == e % size { 500.0 } else { (((e / size) * (e % size)) as f64).sin() })
            .collect();
        let factors = [1, 2, 5].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let factor = pool.install(|| factor(&matrix, size).unwrap());
            (0..size).flat_map(|row| factor.row(row).to_vec()).map(f64::to_bits).collect::<Vec<_>>()
        });
        assert!(factors.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
