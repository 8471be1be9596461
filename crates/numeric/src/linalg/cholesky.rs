//! The Cholesky factor of a symmetric positive definite matrix, in f64: the matrices of calibration have condition numbers
//! of 1e6, which would leave an f32 factor one digit. Nearly all of the work is products of blocks.
//! Not the damping that makes a matrix positive definite, which is its owner's.

use super::lower_blocks::LowerBlocks;
use super::matmul::{Matrix, MatrixMut, Threads, multiply_add};
use rayon::prelude::*;
use std::ops::Range;

/// Rows of a panel. The cuts decide the order of sums, whatever the number of threads.
const SIDE: usize = 256;
/// Depth of a product: deep enough to run at full speed, and not too deep for the cache.
const DEPTH: usize = 1024;
/// Rows written at a time when panels are transposed.
const TURNED: usize = 16;
/// Rows of a square that are factored together.
const STRIP: usize = 32;
/// Unknowns that are found one by one, without products of blocks.
const SINGLE: usize = 16;

/// The matrix has no Cholesky factor: to f64's precision it is not positive definite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the matrix is not positive definite: pivot {pivot} is not positive")]
pub struct NotPositiveDefinite {
    /// The first row whose pivot is not a positive number.
    pub pivot: usize,
}

/// The lower triangular `L` of `A = L L^T`. It takes `4 size (size + 256)` bytes, and finding it takes 512 KiB more for each
/// thread.
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
            factor_panel(&mut done[index], below, rows, size)?;
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
        // A panel is released as soon as it is transposed.
        for (index, panel) in self.panels.into_iter().enumerate() {
            let rows = panel_rows(index, size);
            columns[..rows.end].par_chunks_mut(TURNED).enumerate().for_each(|(chunk, columns)| {
                for (column, out) in (chunk * TURNED..).zip(columns) {
                    for row in rows.start.max(column + 1)..rows.end {
                        out[size - 1 - row] = (panel[(row - rows.start) * rows.end + column] * inverses[column]) as f32;
                    }
                }
            });
        }
        blocks
    }

    /// Solves `L X = B` in place, on the calling thread: columns of `size` elements follow one another.
    ///
    /// # Panics
    /// If the last column is incomplete.
    pub fn solve_lower(&self, columns: &mut [f64]) {
        let size = self.size;
        let count = columns.len().checked_div(size).unwrap_or(0);
        assert_eq!(columns.len(), count * size, "the last column is incomplete");
        // A row of the panel's unknowns for each of its rows, an element for each column.
        let mut unknowns = vec![0.0; SIDE.min(size) * count];
        for (index, panel) in self.panels.iter().enumerate() {
            let rows = panel_rows(index, size);
            let unknowns = &mut unknowns[..rows.len() * count];
            for (row, unknowns) in rows.clone().zip(unknowns.chunks_mut(count.max(1))) {
                (0..count).for_each(|column| unknowns[column] = columns[column * size + row]);
            }
            let earlier = Matrix::new(columns, count, rows.start, size).transposed();
            subtract(unknowns, Matrix::new(panel, rows.len(), rows.start, rows.end), earlier);
            solve(Triangle { elements: &panel[rows.start..], step: rows.end }, unknowns, rows.len(), count);
            for (row, unknowns) in rows.clone().zip(unknowns.chunks(count.max(1))) {
                (0..count).for_each(|column| columns[column * size + row] = unknowns[column]);
            }
        }
    }
}

fn panel_rows(index: usize, size: usize) -> Range<usize> {
    index * SIDE..((index + 1) * SIDE).min(size)
}

/// Finishes the panel `rows`, whose columns before its square are done, and the same columns of the panels below.
fn factor_panel(
    panel: &mut [f64],
    below: &mut [Vec<f64>],
    rows: Range<usize>,
    size: usize,
) -> Result<(), NotPositiveDefinite> {
    let side = rows.len();
    let mut square = columns_of(panel, rows.end, rows.clone());
    let before = Matrix::new(&*panel, side, rows.start, rows.end);
    let first = rows.end.div_ceil(SIDE);
    // These columns of a panel below, transposed: its rows are columns of the panel.
    let tile_of = |(index, below): (usize, &mut Vec<f64>)| {
        let below_rows = panel_rows(first + index, size);
        let mut tile = transposed(below, below_rows.end, rows.clone());
        subtract(&mut tile, before, Matrix::new(below, below_rows.len(), rows.start, below_rows.end).transposed());
        write_turned(below, below_rows.end, rows.clone(), &tile);
    };
    let of_square = || {
        subtract(&mut square, before, before.transposed());
        factor_square(&mut square, side).map_err(|row| NotPositiveDefinite { pivot: rows.start + row })
    };
    let of_others = || below.par_iter_mut().enumerate().for_each(tile_of);
    rayon::join(of_square, of_others).0?;
    below.par_iter_mut().enumerate().for_each(|(index, below)| {
        let below_rows = panel_rows(first + index, size);
        let mut tile = transposed(below, below_rows.end, rows.clone());
        solve(Triangle { elements: &square, step: side }, &mut tile, side, below_rows.len());
        write_turned(below, below_rows.end, rows.clone(), &tile);
    });
    let width = rows.end;
    for (row, square) in panel.chunks_mut(width).zip(square.chunks(side)) {
        row[rows.start..].copy_from_slice(square);
    }
    Ok(())
}

/// Some columns of rows of `width` elements, row by row.
fn columns_of(rows: &[f64], width: usize, columns: Range<usize>) -> Vec<f64> {
    rows.chunks(width).flat_map(|row| &row[columns.clone()]).copied().collect()
}

/// Some columns of rows of `width` elements, column by column.
fn transposed(rows: &[f64], width: usize, columns: Range<usize>) -> Vec<f64> {
    columns.flat_map(|column| rows.iter().skip(column).step_by(width)).copied().collect()
}

/// Writes back what [`transposed`] gave.
fn write_turned(rows: &mut [f64], width: usize, columns: Range<usize>, transposed: &[f64]) {
    let count = rows.len() / width;
    for (index, row) in rows.chunks_mut(width).enumerate() {
        for (element, transposed) in row[columns.clone()].iter_mut().zip(transposed.iter().skip(index).step_by(count)) {
            *element = *transposed;
        }
    }
}

/// `out -= a b`, where the rows of `out` follow one another.
fn subtract(out: &mut [f64], a: Matrix<'_, f64>, b: Matrix<'_, f64>) {
    let (rows, columns) = (a.rows, b.columns);
    for start in (0..a.columns).step_by(DEPTH) {
        let depth = start..a.columns.min(start + DEPTH);
        let out = MatrixMut::new(&mut *out, rows, columns, columns);
        multiply_add(out, a.transposed().part(depth.clone()).transposed(), b.part(depth), -1.0, Threads::One);
    }
}

/// A lower triangular matrix whose rows are `step` apart; elements above the diagonal are ignored.
#[derive(Clone, Copy)]
struct Triangle<'a> {
    elements: &'a [f64],
    step: usize,
}

/// Solves `L X = B` in place for the first `size` rows of `L`: `x` has a row of `count` elements for each.
fn solve(lower: Triangle<'_>, x: &mut [f64], size: usize, count: usize) {
    let Triangle { elements, step } = lower;
    if size <= SINGLE {
        return solve_singly(lower, x, count);
    }
    let half = size.div_ceil(2 * SINGLE) * SINGLE;
    let (first, last) = x.split_at_mut(half * count);
    solve(lower, first, half, count);
    let left = Matrix::new(&elements[half * step..], size - half, half, step);
    subtract(last, left, Matrix::new(first, half, count, count));
    solve(Triangle { elements: &elements[half * step + half..], step }, last, size - half, count);
}

fn solve_singly(lower: Triangle<'_>, x: &mut [f64], count: usize) {
    for row in 0..x.len().checked_div(count).unwrap_or(0) {
        let coefficients = &lower.elements[row * lower.step..][..row + 1];
        let (known, unknown) = x.split_at_mut(row * count);
        let unknown = &mut unknown[..count];
        for (known, coefficient) in known.chunks(count).zip(coefficients) {
            unknown.iter_mut().zip(known).for_each(|(unknown, known)| *unknown -= coefficient * known);
        }
        let inverse = 1.0 / coefficients[row];
        unknown.iter_mut().for_each(|unknown| *unknown *= inverse);
    }
}

/// Factors a square on the diagonal, reading its lower half. Returns the row whose pivot is not positive,
/// if there is one.
fn factor_square(square: &mut [f64], side: usize) -> Result<(), usize> {
    for start in (0..side).step_by(STRIP) {
        let count = STRIP.min(side - start);
        let (done, strip) = square.split_at_mut(start * side);
        let strip = &mut strip[..count * side];
        let mut left = transposed(strip, side, 0..start);
        solve(Triangle { elements: done, step: side }, &mut left, start, count);
        write_turned(strip, side, 0..start, &left);
        let mut corner = columns_of(strip, side, start..start + count);
        let left = Matrix::new(&left, start, count, count);
        subtract(&mut corner, left.transposed(), left);
        factor_singly(&mut corner, count).map_err(|row| start + row)?;
        for (row, corner) in strip.chunks_mut(side).zip(corner.chunks(count)) {
            row[start..start + count].copy_from_slice(corner);
        }
    }
    Ok(())
}

fn factor_singly(square: &mut [f64], side: usize) -> Result<(), usize> {
    for row in 0..side {
        let (done, own) = square.split_at_mut(row * side);
        for column in 0..row {
            let known = &done[column * side..][..column + 1];
            let sum: f64 = own[..column].iter().zip(known).map(|(a, b)| a * b).sum();
            own[column] = (own[column] - sum) / known[column];
        }
        let pivot = own[row] - own[..row].iter().map(|a| a * a).sum::<f64>();
        if !(pivot > 0.0 && pivot.is_finite()) {
            return Err(row);
        }
        own[row] = pivot.sqrt();
    }
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
    fn cholesky_factor_times_itself_is_the_matrix() {
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
    fn reversed_columns_are_divided_by_their_pivots() {
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
    fn non_positive_definite_matrix_names_its_pivot() {
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
    fn factor_does_not_depend_on_the_number_of_threads() {
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
