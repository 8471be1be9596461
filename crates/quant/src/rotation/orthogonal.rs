//! Orthogonal matrices drawn at random, for orders without a Hadamard matrix.

use super::factor::Factor;
use crate::random::SplitMix64;

/// Up to this order, so many matrices are drawn and the flattest is taken.
const SEARCHED: usize = 32;
const DRAWS: usize = 200;

/// An orthogonal matrix, its rows drawn at random.
pub(super) fn random_orthogonal(size: usize, random: &mut SplitMix64) -> Factor {
    let mut rows: Vec<Vec<f64>> = Vec::with_capacity(size);
    while rows.len() < size {
        let mut row: Vec<f64> = (0..size).map(|_| 2.0 * random.uniform() - 1.0).collect();
        // Twice: what rounding left of the others after the first time is gone after the second.
        for _ in 0..2 {
            rows.iter().for_each(|other| subtract(&mut row, other));
        }
        let norm = dot(&row, &row).sqrt();
        // A row that lies among the others is drawn again.
        if norm > 1e-3 {
            row.iter_mut().for_each(|value| *value /= norm);
            rows.push(row);
        }
    }
    Factor::new(size, rows.concat())
}

/// A matrix that keeps the vector of ones, the flattest of those that are drawn.
pub(super) fn flattest_mean_keeping(size: usize, random: &mut SplitMix64) -> Factor {
    let draws = if size <= SEARCHED { DRAWS } else { 1 };
    let mut best = mean_keeping(size, random);
    for _ in 1..draws {
        let next = mean_keeping(size, random);
        if next.peak() < best.peak() {
            best = next;
        }
    }
    best
}

/// `A^T diag(1, B) A`, where the first row of `A` is the direction of ones and `B` is drawn.
fn mean_keeping(size: usize, random: &mut SplitMix64) -> Factor {
    let (basis, inner) = (helmert(size), random_orthogonal(size - 1, random));
    let middle = Factor::of(size, |row, column| match (row, column) {
        (0, 0) => 1.0,
        (0, _) | (_, 0) => 0.0,
        _ => inner.at(row - 1, column - 1),
    });
    basis.transposed().times(&middle).times(&basis)
}

/// An orthogonal matrix whose first row has one value: the others compare each element with all before it.
fn helmert(size: usize) -> Factor {
    Factor::of(size, |row, column| {
        let n = row as f64;
        match (row, column) {
            (0, _) => 1.0 / (size as f64).sqrt(),
            _ if column < row => 1.0 / (n * (n + 1.0)).sqrt(),
            _ if column == row => -n / (n * (n + 1.0)).sqrt(),
            _ => 0.0,
        }
    })
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Removes the component along a unit row.
fn subtract(row: &mut [f64], other: &[f64]) {
    let share = dot(row, other);
    row.iter_mut().zip(other).for_each(|(value, other)| *value -= share * other);
}
