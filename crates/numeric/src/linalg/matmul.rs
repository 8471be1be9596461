//! Products of dense matrices through the crates of `gemm`, behind views that check their bounds. The only `unsafe` of this
//! module is the call into them, which takes raw pointers. The crate `gemm` itself would add the kernels of complex numbers.
#![allow(unsafe_code)]

use gemm_common::Parallelism;
use std::ops::Range;

/// The element type of products: `f32`, or `f64` where factors need it.
pub trait Element: Copy + std::fmt::Debug + Send + Sync + 'static {
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// The kernel for this processor.
    #[doc(hidden)]
    fn kernel() -> Kernel<Self>;
}

/// `dst = alpha dst + beta lhs rhs`: sizes m, n, k; pointer, steps of columns and rows of each matrix; whether `dst` is read.
#[doc(hidden)]
#[rustfmt::skip]
pub type Kernel<T> = unsafe fn(
    usize, usize, usize,
    *mut T, isize, isize, bool,
    *const T, isize, isize,
    *const T, isize, isize,
    T, T, bool, bool, bool, Parallelism,
);

impl Element for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;

    fn kernel() -> Kernel<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}

impl Element for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;

    fn kernel() -> Kernel<f64> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}

/// A matrix in a slice: element `(r, c)` stands at `r * row_step + c * column_step`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a, T = f32> {
    pub(super) data: &'a [T],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_step: usize,
    pub(super) column_step: usize,
}

impl<'a, T: Copy> Matrix<'a, T> {
    /// Rows of `columns` elements, `row_step` apart.
    ///
    /// # Panics
    ///
    /// If the last element lies outside the slice.
    pub fn new(data: &'a [T], rows: usize, columns: usize, row_step: usize) -> Matrix<'a, T> {
        assert!(fits(data.len(), rows, columns, row_step), "a {rows}x{columns} matrix does not fit its slice");
        Matrix { data, rows, columns, row_step, column_step: 1 }
    }

    /// Some rows.
    pub(super) fn part(self, rows: Range<usize>) -> Matrix<'a, T> {
        let data = if rows.is_empty() { &[] } else { &self.data[rows.start * self.row_step..] };
        Matrix { data, rows: rows.len(), ..self }
    }

    /// Whether the elements of each row follow one another.
    pub(super) fn has_whole_rows(self) -> bool {
        self.column_step == 1
    }

    /// The same elements with rows and columns exchanged.
    pub fn transposed(self) -> Matrix<'a, T> {
        let Matrix { data, rows, columns, row_step, column_step } = self;
        Matrix { data, rows: columns, columns: rows, row_step: column_step, column_step: row_step }
    }
}

/// A matrix to be written: rows of `columns` elements, `row_step` apart.
#[derive(Debug)]
pub struct MatrixMut<'a, T = f32> {
    pub(super) data: &'a mut [T],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_step: usize,
}

impl<'a, T> MatrixMut<'a, T> {
    /// Rows of `columns` elements, `row_step` apart.
    ///
    /// # Panics
    ///
    /// If the last element lies outside the slice, or rows overlap.
    pub fn new(data: &'a mut [T], rows: usize, columns: usize, row_step: usize) -> MatrixMut<'a, T> {
        assert!(fits(data.len(), rows, columns, row_step), "a {rows}x{columns} matrix does not fit its slice");
        assert!(rows < 2 || row_step >= columns, "rows {row_step} apart overlap");
        MatrixMut { data, rows, columns, row_step }
    }
}

fn fits(length: usize, rows: usize, columns: usize, row_step: usize) -> bool {
    let last = rows.saturating_sub(1).checked_mul(row_step).and_then(|start| start.checked_add(columns));
    rows == 0 || columns == 0 || last.is_some_and(|end| end <= length)
}

/// The threads that compute a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The calling thread alone.
    One,
    /// All threads of the current rayon pool. The work is cut along rows and columns, never along the sum.
    Pool,
}

/// `out = factor * a b`.
///
/// # Panics
///
/// If the shapes do not match.
pub fn multiply<T: Element>(out: MatrixMut<'_, T>, a: Matrix<'_, T>, b: Matrix<'_, T>, factor: T, threads: Threads) {
    product(out, a, b, (factor, false), threads);
}

/// `out += factor * a b`.
///
/// # Panics
///
/// If the shapes do not match.
pub fn multiply_add<T: Element>(
    out: MatrixMut<'_, T>,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    factor: T,
    threads: Threads,
) {
    product(out, a, b, (factor, true), threads);
}

/// `out = factor * a b`, added to what is in `out` or put in its place.
fn product<T: Element>(
    out: MatrixMut<'_, T>,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    (factor, added): (T, bool),
    threads: Threads,
) {
    assert!(a.columns == b.rows && out.rows == a.rows && out.columns == b.columns, "shapes do not match");
    let parallelism = match threads {
        Threads::One => Parallelism::None,
        Threads::Pool => Parallelism::Rayon(0),
    };
    let kernel = T::kernel();
    let (step, last) = (out.row_step as isize, if added { T::ONE } else { T::ZERO });
    let left = (a.data.as_ptr(), a.column_step as isize, a.row_step as isize);
    let right = (b.data.as_ptr(), b.column_step as isize, b.row_step as isize);
    // The kernels are best at columns: `out^T = b^T a^T`, whose columns are the rows of `out`, unless these are single elements.
    let turned = |(data, column_step, row_step)| (data, row_step, column_step);
    let ((m, n), (column_step, row_step), (left, right)) = match step > 1 {
        true => ((out.columns, out.rows), (step, 1), (turned(right), turned(left))),
        false => ((out.rows, out.columns), (1, step), (left, right)),
    };
    let dst = out.data.as_mut_ptr();
    // SAFETY: the constructors checked that the last element of each view, hence every element, lies inside its slice,
    // and that the rows written do not overlap; `out` is borrowed exclusively. What is read of it is initialised.
    unsafe {
        kernel(
            m,
            n,
            a.columns,
            dst,
            column_step,
            row_step,
            added,
            left.0,
            left.1,
            left.2,
            right.0,
            right.1,
            right.2,
            last,
            factor,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 37 + seed * 11) % 19) as f32 * 0.25 - 2.0).collect()
    }

    /// `factor * x w^T` by the definition; the values make every sum exact.
    fn naive(x: &[f32], w: &[f32], (m, n, k): (usize, usize, usize), factor: f32) -> Vec<f32> {
        let dot = |r: usize, c: usize| (0..k).map(|i| x[r * k + i] * w[c * k + i]).sum::<f32>();
        (0..m * n).map(|i| factor * dot(i / n, i % n)).collect()
    }

    #[test]
    fn products_match_the_definition_at_odd_sizes() {
        for shape @ (m, n, k) in [(1, 1, 1), (1, 17, 5), (3, 33, 64), (65, 7, 19), (50, 130, 70), (5, 4, 0)] {
            let (x, w) = (values(m * k, 1), values(n * k, 2));
            let expected = naive(&x, &w, shape, 0.5);
            for threads in [Threads::One, Threads::Pool] {
                let mut out = vec![f32::NAN; m * n];
                let w = Matrix::new(&w, n, k, k).transposed();
                multiply(MatrixMut::new(&mut out, m, n, n), Matrix::new(&x, m, k, k), w, 0.5, threads);
                assert_eq!(out, expected, "{shape:?}");
            }
        }
    }

    #[test]
    fn multiply_add_adds_to_the_output() {
        let (m, n, k) = (33, 20, 17);
        let (x, w, before) = (values(m * k, 1), values(n * k, 2), values(m * n, 3));
        let mut out = before.clone();
        let w_view = Matrix::new(&w, n, k, k).transposed();
        multiply_add(MatrixMut::new(&mut out, m, n, n), Matrix::new(&x, m, k, k), w_view, 0.5, Threads::One);
        let product = naive(&x, &w, (m, n, k), 0.5);
        assert!(out.iter().zip(before.iter().zip(&product)).all(|(out, (before, product))| *out == before + product));
    }

    #[test]
    fn gaps_between_rows_are_untouched() {
        let mut out = vec![7.0; 12];
        let a = values(6, 3);
        multiply(
            MatrixMut::new(&mut out[1..], 3, 2, 4),
            Matrix::new(&a, 3, 1, 2),
            Matrix::new(&[1.0, 2.0], 1, 2, 2),
            1.0,
            Threads::One,
        );
        let expected = [7.0, a[0], 2.0 * a[0], 7.0, 7.0, a[2], 2.0 * a[2], 7.0, 7.0, a[4], 2.0 * a[4], 7.0];
        assert_eq!(out, expected);
    }

    #[test]
    #[should_panic(expected = "does not fit")]
    fn view_outside_its_slice_is_refused() {
        Matrix::new(&[0.0; 5], 2, 3, 3);
    }
}
