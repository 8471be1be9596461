//! The squared error that changes of a group's weights make in its share of the outputs, by way of the group's inputs alone.

use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, multiply};
use rayon::prelude::*;

/// The inputs of the columns of one group, in the smaller of two forms that give the same errors.
#[derive(Clone, Debug)]
pub(super) enum GroupInputs {
    /// `G = X^T X`, for groups narrower than there are tokens: the error of `d` is `d G d^T`.
    Gram(Vec<f32>),
    /// `X`, one row a token: the error is `|d X^T|^2`.
    Samples(Vec<f32>),
}

impl GroupInputs {
    /// Of columns `first..first + width` of `inputs`, whose rows have `columns` elements.
    pub(super) fn new(inputs: &[f32], columns: usize, first: usize, width: usize) -> GroupInputs {
        let tokens = inputs.len() / columns;
        let part = Matrix::new(inputs.get(first..).unwrap_or(&[]), tokens, width, columns);
        if width > tokens {
            let of_group = inputs.chunks_exact(columns).flat_map(|row| &row[first..first + width]);
            return GroupInputs::Samples(of_group.copied().collect());
        }
        let mut gram = vec![0.0; width * width];
        multiply(MatrixMut::new(&mut gram, width, width, width), part.transposed(), part, 1.0, Threads::One);
        GroupInputs::Gram(gram)
    }

    /// All groups of `inputs`.
    pub(super) fn of_groups(inputs: &[f32], columns: usize, group: usize) -> Vec<GroupInputs> {
        let starts: Vec<usize> = (0..columns).step_by(group).collect();
        let width = |first: usize| group.min(columns - first);
        starts.into_par_iter().map(|first| GroupInputs::new(inputs, columns, first, width(first))).collect()
    }

    /// The error of each row of `changes`, a matrix as wide as the group. `products` is a buffer.
    pub(super) fn errors(&self, changes: Matrix<'_>, rows: &[&[f32]], products: &mut Vec<f32>, errors: &mut [f32]) {
        let width = rows.first().map_or(0, |row| row.len()).max(1);
        // The Gram matrix is its own transpose.
        let (GroupInputs::Gram(factor) | GroupInputs::Samples(factor)) = self;
        let across = factor.len() / width;
        products.resize(rows.len() * across, 0.0);
        let out = MatrixMut::new(products, rows.len(), across, across);
        multiply(out, changes, Matrix::new(factor, across, width, width).transposed(), 1.0, Threads::One);
        for ((error, product), row) in errors.iter_mut().zip(products.chunks(across.max(1))).zip(rows) {
            *error = match self {
                GroupInputs::Gram(_) => dot(product, row),
                GroupInputs::Samples(_) => dot(product, product),
            };
        }
    }
}

/// Eight sums side by side, which the compiler keeps in vectors.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a, b) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a.remainder().iter().zip(b.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a.zip(b) {
        (0..8).for_each(|lane| sums[lane] += a[lane] * b[lane]);
    }
    sums.iter().sum::<f32>() + rest
}
