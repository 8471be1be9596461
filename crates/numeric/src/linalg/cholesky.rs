//! The Cholesky factor of a symmetric positive definite matrix, in f64: the matrices of calibration have condition numbers
//! of 1e6, which would leave an f32 factor one digit. Products and the factors of blocks are those of the `faer` crate.
//! Not the damping that makes a matrix positive definite, which is its owner's.

use super::lower_blocks::LowerBlocks;
use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::{LltError, cholesky_in_place, cholesky_in_place_scratch};
use faer::linalg::matmul::matmul;
use faer::linalg::triangular_solve::solve_lower_triangular_in_place;
use faer::{Accum, MatMut, MatRef, Par, Spec};
use rayon::prelude::*;
use std::ops::Range;

/// Rows of a panel. The cuts decide the order of sums, whatever the number of threads.
const SIDE: usize = 256;
/// Depth of a product: deep enough to run at full speed, and not too deep for the cache.
const DEPTH: usize = 1024;
/// Rows that are written at a time when panels are turned.
const TURNED: usize = 16;

/// The matrix has no Cholesky factor: to f64's precision it is not positive definite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the matrix is not positive definite: pivot {pivot} is not positive")]
pub struct NotPositiveDefinite {
    /// The first row whose pivot is not a positive number.
    pub pivot: usize,
}

/// The lower triangular `L` of `A = L L^T`. It takes `4 size (size + 256)` bytes, and finding it takes no more.
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
        let filled = |panel| {
            let rows = panel_rows(panel, size);
            let mut elements = vec![0.0; rows.len() * rows.end];
            fill(rows, &mut elements);
            elements
        };
        let mut panels: Vec<Vec<f64>> = (0..size.div_ceil(SIDE)).into_par_iter().map(filled).collect();
        for index in 0..panels.len() {
            let (done, below) = panels.split_at_mut(index + 1);
            let rows = panel_rows(index, size);
            factor_panel(view_mut(&mut done[index], &rows), below, rows, size)?;
        }
        Ok(Cholesky { size, panels })
    }

    /// Rows, and columns, of the matrix.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The diagonal element `L_ii`.
    pub fn pivot(&self, i: usize) -> f64 {
        self.row(i)[i]
    }

    /// Row `row` of `L` up to and including the diagonal.
    pub fn row(&self, row: usize) -> &[f64] {
        let width = panel_rows(row / SIDE, self.size).end;
        &self.panels[row / SIDE][row % SIDE * width..][..row + 1]
    }

    /// Columns divided by their pivots, as rows, all backwards: with positions counted from the end, row `j` holds
    /// `L_ij / L_jj` for `i < j`, and zeros from the diagonal on. In blocks of `side`.
    pub fn into_reversed_columns(self, side: usize) -> LowerBlocks {
        let size = self.size;
        let inverses: Vec<f64> = (0..size).map(|i| 1.0 / self.pivot(i)).collect();
        let mut blocks = LowerBlocks::zeros(size, side);
        let mut columns: Vec<&mut [f32]> = blocks.rows_mut().into_iter().rev().collect();
        // A panel is given back as soon as it was turned.
        for (index, panel) in self.panels.into_iter().enumerate() {
            let rows = panel_rows(index, size);
            let panel = view(&panel, &rows);
            columns[..rows.end].par_chunks_mut(TURNED).enumerate().for_each(|(chunk, columns)| {
                for (column, out) in (chunk * TURNED..).zip(columns) {
                    for row in rows.start.max(column + 1)..rows.end {
                        out[size - 1 - row] = (panel[(row - rows.start, column)] * inverses[column]) as f32;
                    }
                }
            });
        }
        blocks
    }

    /// Solves `L X = B` in place, on the calling thread: columns of `size` elements follow one another.
    ///
    /// # Panics
    /// If the last column is not whole.
    pub fn solve_lower(&self, columns: &mut [f64]) {
        let count = columns.len().checked_div(self.size).unwrap_or(0);
        for (index, panel) in self.panels.iter().enumerate() {
            let rows = panel_rows(index, self.size);
            let (before, square) = view(panel, &rows).split_at_col(rows.start);
            let x = MatMut::from_column_major_slice_mut(&mut *columns, self.size, count);
            let (earlier, x) = x.split_at_row_mut(rows.start);
            let mut x = x.subrows_mut(0, rows.len());
            matmul(x.as_mut(), Accum::Add, before, earlier.as_ref(), -1.0, Par::Seq);
            solve_lower_triangular_in_place(square, x, Par::Seq);
        }
    }
}

fn panel_rows(index: usize, size: usize) -> Range<usize> {
    index * SIDE..((index + 1) * SIDE).min(size)
}

/// A panel as a matrix.
fn view<'a>(panel: &'a [f64], rows: &Range<usize>) -> MatRef<'a, f64> {
    MatRef::from_row_major_slice(panel, rows.len(), rows.end)
}

fn view_mut<'a>(panel: &'a mut [f64], rows: &Range<usize>) -> MatMut<'a, f64> {
    MatMut::from_row_major_slice_mut(panel, rows.len(), rows.end)
}

/// Finishes the panel `rows`, whose columns before its square are done, and the same columns of the panels below.
fn factor_panel(
    panel: MatMut<'_, f64>,
    below: &mut [Vec<f64>],
    rows: Range<usize>,
    size: usize,
) -> Result<(), NotPositiveDefinite> {
    let (before, mut square) = panel.split_at_col_mut(rows.start);
    let before = before.as_ref();
    let of_square = || {
        subtract(square.as_mut(), before, before);
        factor_square(square.as_mut()).map_err(|row| NotPositiveDefinite { pivot: rows.start + row })
    };
    let first = rows.end.div_ceil(SIDE);
    let of_others = || {
        below.par_iter_mut().enumerate().for_each(|(index, panel)| {
            let (left, tile) = view_mut(panel, &panel_rows(first + index, size)).split_at_col_mut(rows.start);
            subtract(tile.subcols_mut(0, rows.len()), left.as_ref(), before);
        });
    };
    rayon::join(of_square, of_others).0?;
    let square = square.as_ref();
    below.par_iter_mut().enumerate().for_each(|(index, panel)| {
        let panel = view_mut(panel, &panel_rows(first + index, size));
        let tile = panel.subcols_mut(rows.start, rows.len());
        solve_lower_triangular_in_place(square, tile.transpose_mut(), Par::Seq);
    });
    Ok(())
}

/// `tile -= a b^T`.
fn subtract(mut tile: MatMut<'_, f64>, a: MatRef<'_, f64>, b: MatRef<'_, f64>) {
    for start in (0..a.ncols()).step_by(DEPTH) {
        let depth = DEPTH.min(a.ncols() - start);
        let (a, b) = (a.subcols(start, depth), b.subcols(start, depth));
        matmul(tile.as_mut(), Accum::Add, a, b.transpose(), -1.0, Par::Seq);
    }
}

/// Factors a square on the diagonal, of which the lower half is read. Gives the row whose pivot is not a positive number
/// where there is one.
fn factor_square(mut square: MatMut<'_, f64>) -> Result<(), usize> {
    let (size, params) = (square.nrows(), Spec::default());
    let mut columns: Vec<f64> = (0..size * size).map(|i| square[(i % size, i / size)]).collect();
    let mut memory = MemBuffer::new(cholesky_in_place_scratch::<f64>(size, Par::Seq, params));
    let matrix = MatMut::from_column_major_slice_mut(&mut columns, size, size);
    let factored = cholesky_in_place(matrix, Default::default(), Par::Seq, MemStack::new(&mut memory), params);
    factored.map_err(|LltError::NonPositivePivot { index }| index)?;
    let is_positive = |i: &usize| columns[i * size + i] > 0.0 && columns[i * size + i].is_finite();
    if let Some(broken) = (0..size).find(|i| !is_positive(i)) {
        return Err(broken);
    }
    (0..size * size).for_each(|i| square[(i % size, i / size)] = columns[i]);
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
                    let sum: f64 = (0..=column).map(|k| factor.row(row)[k] * factor.row(column)[k]).sum();
                    assert!((sum - matrix[row * size + column]).abs() < 1e-12 * size as f64, "{size} {row} {column}");
                }
            }
        }
        assert_eq!(factor(&[], 0).unwrap().size(), 0);
    }

    #[test]
    fn reversed_columns_are_columns_divided_by_their_pivots() {
        for (size, side) in [(1, 128), (300, 128), (530, 100)] {
            let factor = factor(&positive(size), size).unwrap();
            let blocks = factor.clone().into_reversed_columns(side);
            for position in 0..size {
                let (own, before) = blocks.row(position).split_last().unwrap();
                let column = size - 1 - position;
                let expected = |i: usize| factor.row(size - 1 - i)[column] / factor.pivot(column);
                assert!((0..position).all(|i| (f64::from(before[i]) - expected(i)).abs() < 1e-6));
                assert_eq!(*own, 0.0);
            }
        }
    }

    #[test]
    fn triangular_systems_are_solved() {
        for size in [33, 300] {
            let factor = factor(&positive(size), size).unwrap();
            let right: Vec<f64> = (0..size * 3).map(|i| (i as f64).sin()).collect();
            let mut solved = right.clone();
            factor.solve_lower(&mut solved);
            for (x, b) in solved.chunks(size).zip(right.chunks(size)) {
                for (row, b) in b.iter().enumerate() {
                    let sum: f64 = (0..=row).map(|k| factor.row(row)[k] * x[k]).sum();
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
