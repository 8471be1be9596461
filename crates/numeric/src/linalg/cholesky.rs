//! The Cholesky factor of a symmetric positive definite matrix, through the `faer` crate, in f64: the matrices of
//! calibration have condition numbers of 1e6, which would leave an f32 factor one digit. Not the damping that makes a
//! matrix positive definite, which is its owner's.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::cholesky::llt::factor::{LltError, cholesky_in_place, cholesky_in_place_scratch};
use faer::linalg::triangular_solve::solve_lower_triangular_in_place;
use faer::{MatMut, MatRef, Par, Spec};

/// Pieces that the work is cut into, whatever the number of threads: the cuts decide the order of sums.
const PIECES: usize = 16;

/// The matrix has no Cholesky factor: to f64's precision it is not positive definite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the matrix is not positive definite: pivot {pivot} is not positive")]
pub struct NotPositiveDefinite {
    /// The first row whose pivot is not a positive number.
    pub pivot: usize,
}

/// The lower triangular `L` of `A = L L^T`.
#[derive(Clone, Debug)]
pub struct Cholesky {
    size: usize,
    /// Column-major. What lies above the diagonal means nothing.
    elements: Vec<f64>,
}

impl Cholesky {
    /// Factors a `size x size` matrix, column-major, in place; only its lower half is read. All threads of the current
    /// rayon pool take part; the factor does not depend on their number.
    ///
    /// # Errors
    /// [`NotPositiveDefinite`], which a NaN in the matrix is too.
    ///
    /// # Panics
    /// If there are not `size * size` elements.
    pub fn factor(mut elements: Vec<f64>, size: usize) -> Result<Cholesky, NotPositiveDefinite> {
        assert_eq!(elements.len(), size * size, "a {size}x{size} matrix");
        let (par, params) = (Par::rayon(PIECES), Spec::default());
        let mut memory = MemBuffer::new(cholesky_in_place_scratch::<f64>(size, par, params));
        let matrix = MatMut::from_column_major_slice_mut(&mut elements, size, size);
        let factored = cholesky_in_place(matrix, Default::default(), par, MemStack::new(&mut memory), params);
        match factored {
            Ok(_) => Cholesky { size, elements }.checked(),
            Err(LltError::NonPositivePivot { index }) => Err(NotPositiveDefinite { pivot: index }),
        }
    }

    fn checked(self) -> Result<Cholesky, NotPositiveDefinite> {
        let broken = (0..self.size).find(|i| !(self.pivot(*i) > 0.0 && self.pivot(*i).is_finite()));
        broken.map_or(Ok(self), |pivot| Err(NotPositiveDefinite { pivot }))
    }

    /// Rows, and columns, of the matrix.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The diagonal element `L_ii`.
    pub fn pivot(&self, i: usize) -> f64 {
        self.elements[i * self.size + i]
    }

    /// Column `column` of `L` from the diagonal down.
    pub fn column(&self, column: usize) -> &[f64] {
        &self.elements[column * self.size + column..(column + 1) * self.size]
    }

    /// Solves `L X = B` in place, on the calling thread: columns of `size` elements follow one another.
    ///
    /// # Panics
    /// If the last column is not whole.
    pub fn solve_lower(&self, columns: &mut [f64]) {
        let count = columns.len().checked_div(self.size).unwrap_or(0);
        let right = MatMut::from_column_major_slice_mut(columns, self.size, count);
        let lower = MatRef::from_column_major_slice(&self.elements, self.size, self.size);
        solve_lower_triangular_in_place(lower, right, Par::Seq);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `G G^T + I`, column-major, of a matrix `G` without structure.
    fn positive(size: usize) -> Vec<f64> {
        let g: Vec<f64> = (0..size * size).map(|i| ((i * 7919 + i / 13) % 1009) as f64 / 1009.0 - 0.5).collect();
        let dot = |i: usize, j: usize| (0..size).map(|k| g[i * size + k] * g[j * size + k]).sum::<f64>();
        (0..size * size).map(|e| dot(e % size, e / size) + f64::from(u8::from(e % size == e / size))).collect()
    }

    fn lower(factor: &Cholesky, row: usize, column: usize) -> f64 {
        factor.column(column)[row - column]
    }

    #[test]
    fn the_factor_times_itself_is_the_matrix() {
        for size in [1, 2, 17, 70, 200] {
            let matrix = positive(size);
            let factor = Cholesky::factor(matrix.clone(), size).unwrap();
            for row in 0..size {
                for column in 0..=row {
                    let sum: f64 = (0..=column).map(|k| lower(&factor, row, k) * lower(&factor, column, k)).sum();
                    assert!((sum - matrix[column * size + row]).abs() < 1e-12 * size as f64);
                }
            }
        }
        assert_eq!(Cholesky::factor(Vec::new(), 0).unwrap().size(), 0);
    }

    #[test]
    fn triangular_systems_are_solved() {
        let size = 33;
        let factor = Cholesky::factor(positive(size), size).unwrap();
        let right: Vec<f64> = (0..size * 3).map(|i| (i as f64).sin()).collect();
        let mut solved = right.clone();
        factor.solve_lower(&mut solved);
        for (x, b) in solved.chunks(size).zip(right.chunks(size)) {
            for (row, b) in b.iter().enumerate() {
                let sum: f64 = (0..=row).map(|k| lower(&factor, row, k) * x[k]).sum();
                assert!((sum - b).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn what_is_not_positive_definite_is_said() {
        for bad in [0.0, -1.0, f64::NAN] {
            let mut matrix = positive(20);
            for i in 0..20 {
                (matrix[7 * 20 + i], matrix[i * 20 + 7]) = (0.0, 0.0);
            }
            matrix[7 * 20 + 7] = bad;
            assert_eq!(Cholesky::factor(matrix, 20).unwrap_err(), NotPositiveDefinite { pivot: 7 }, "{bad}");
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
            let factor = pool.install(|| Cholesky::factor(matrix.clone(), size).unwrap());
            (0..size).flat_map(|c| factor.column(c).to_vec()).map(f64::to_bits).collect::<Vec<_>>()
        });
        assert!(factors.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
