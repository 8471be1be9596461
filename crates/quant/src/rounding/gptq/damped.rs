//! The damped Hessian: its diagonal, the damping, and its factor. Not what follows from the factor.

use super::ColumnOrder;
use crate::hessian::HessianError;
use kvant_numeric::linalg::{Cholesky, Gram, Matrix, MatrixMut, Threads, multiply};
use std::ops::Range;

/// More damping is tried so often before a Hessian is refused.
const TRIES: u32 = 5;

/// The diagonal of a Hessian, with the mean where it is zero.
pub(super) struct Diagonal {
    values: Vec<f64>,
    pub(super) dead: Vec<bool>,
    pub(super) mean: f64,
}

impl Diagonal {
    pub(super) fn new(gram: &Gram) -> Result<Diagonal, HessianError> {
        if !gram.sums().elements().iter().all(|sum| sum.is_finite()) {
            return Err(HessianError::NotFinite);
        }
        let mut values: Vec<f64> = gram.diagonal().into_iter().map(f64::from).collect();
        let dead: Vec<bool> = values.iter().map(|value| *value <= 0.0).collect();
        let alive = dead.iter().filter(|dead| !**dead).count();
        if alive == 0 {
            return Err(HessianError::NoData);
        }
        let mean = values.iter().sum::<f64>() / alive as f64;
        values.iter_mut().zip(&dead).filter(|(_, dead)| **dead).for_each(|(value, _)| *value = mean);
        Ok(Diagonal { values, dead, mean })
    }

    pub(super) fn of(&self, column: usize) -> f64 {
        self.values[column]
    }

    pub(super) fn order(&self, order: ColumnOrder) -> Vec<usize> {
        let mut columns: Vec<usize> = (0..self.values.len()).collect();
        if order == ColumnOrder::Activation {
            columns.sort_by(|a, b| self.values[*b].total_cmp(&self.values[*a]));
        }
        columns
    }
}

/// The Cholesky factor of the damped Hessian, columns from the last position to the first, and the damping. Where a
/// damping is too small, ten times more is tried.
pub(super) fn factor(
    gram: &Gram,
    diagonal: &Diagonal,
    order: &[usize],
    wanted: f64,
) -> Result<(Cholesky, f64), HessianError> {
    let mut extra = wanted.abs().max(1e-6 * diagonal.mean).max(f64::EPSILON);
    let mut damping = wanted;
    let backwards: Vec<usize> = order.iter().rev().copied().collect();
    for _ in 0..=TRIES {
        let fill = |rows, out: &mut [f64]| fill(gram, diagonal, &backwards, damping, rows, out);
        if let Ok(cholesky) = Cholesky::factor(order.len(), fill) {
            return Ok((cholesky, damping));
        }
        damping = wanted + extra;
        extra *= 10.0;
    }
    Err(HessianError::NotPositiveDefinite { tries: TRIES })
}

/// Some rows of the damped Hessian, columns in the given order, up to the last of these rows.
fn fill(gram: &Gram, diagonal: &Diagonal, order: &[usize], damping: f64, rows: Range<usize>, out: &mut [f64]) {
    let width = rows.end;
    for (row, out) in rows.clone().zip(out.chunks_mut(width)) {
        let own = gram.sums().row(order[row]);
        let sums = order[..=row].iter().map(|column| f64::from(own[(*column).min(order[row])]));
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum);
    }
    // Elements that the lower half has in the rows of other columns, each of which is read for all rows.
    for (position, column) in order[..width].iter().enumerate() {
        let other = gram.sums().row(*column);
        for (own, out) in order[rows.clone()].iter().zip(out.chunks_mut(width)) {
            // Read in any case, as the branch is unpredictable.
            let sum = f64::from(other[(*own).min(*column)]);
            out[position] = if own < column { sum } else { out[position] };
        }
    }
    for (row, out) in rows.zip(out.chunks_mut(width)) {
        out[row] = diagonal.of(order[row]) + damping;
    }
}

/// The largest eigenvalue: the Rayleigh quotient after thirty power iterations from ones.
pub(super) fn largest_eigenvalue(gram: &Gram) -> f64 {
    let mut vector = vec![1.0; gram.features()];
    for _ in 0..30 {
        vector = times(gram, &vector);
        normalize(&mut vector);
    }
    let products = times(gram, &vector);
    vector.iter().zip(products).map(|(v, product)| f64::from(*v) * f64::from(product)).sum()
}

fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
    }
}

/// The symmetric matrix times a vector.
fn times(gram: &Gram, vector: &[f32]) -> Vec<f32> {
    let mut out = vec![0.0; vector.len()];
    let mut part = vec![0.0; vector.len()];
    for place in gram.sums().block_rows() {
        let (first, height, width) = (place.rows.start, place.rows.len(), place.columns);
        let block = Matrix::new(gram.sums().block_row(&place), height, width, width);
        let right = Matrix::new(vector, width, 1, 1);
        multiply(MatrixMut::new(&mut part, height, 1, 1), block, right, 1.0, Threads::Pool);
        out[first..width].iter_mut().zip(&part).for_each(|(out, part)| *out += part);
        let above = Matrix::new(gram.sums().block_row(&place), height, first, width).transposed();
        let right = Matrix::new(&vector[first..], height, 1, 1);
        multiply(MatrixMut::new(&mut part, first, 1, 1), above, right, 1.0, Threads::Pool);
        out[..first].iter_mut().zip(&part).for_each(|(out, part)| *out += part);
    }
    out
}
