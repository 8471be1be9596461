//! Hadamard matrices of orders that are no powers of two, by Paley's two constructions over the residues of a prime.
//!
//! With `chi(a)` 1 where `a` is a square modulo the prime `q`, -1 where it is none, 0 of 0, and `Q[i][j] = chi(i - j)` bordered by ones:
//! for `q = 3 mod 4` the order is `q + 1`, for `q = 1 mod 4` it is `2 (q + 1)`. Prime powers are not used.

use super::factor::Factor;

/// The matrix of an order, divided by the root of the order; `None` where neither construction has it.
pub(super) fn paley(order: usize) -> Option<Factor> {
    let first = order.checked_sub(1).filter(|&q| q % 4 == 3 && is_prime(q));
    let second = (order / 2).checked_sub(1).filter(|&q| order.is_multiple_of(2) && q % 4 == 1 && is_prime(q));
    let made = first.map(skew).or_else(|| second.map(doubled))?;
    Some(made.normalized())
}

/// `I + S`, `S` the conference matrix of a prime, negative below its border.
fn skew(prime: usize) -> Factor {
    let residues = residues(prime);
    Factor::of(prime + 1, |row, column| match (row, column) {
        _ if row == column => 1.0,
        (0, _) => 1.0,
        (_, 0) => -1.0,
        _ => residues[(row + prime - column) % prime],
    })
}

/// Each element of the symmetric conference matrix of a prime as a matrix of order two.
fn doubled(prime: usize) -> Factor {
    const BESIDE: [[f64; 2]; 2] = [[1.0, 1.0], [1.0, -1.0]];
    const DIAGONAL: [[f64; 2]; 2] = [[1.0, -1.0], [-1.0, -1.0]];
    let residues = residues(prime);
    Factor::of(2 * (prime + 1), |row, column| {
        let (i, j) = (row / 2, column / 2);
        match (i, j) {
            _ if i == j => DIAGONAL[row % 2][column % 2],
            (0, _) | (_, 0) => BESIDE[row % 2][column % 2],
            _ => residues[(i + prime - j) % prime] * BESIDE[row % 2][column % 2],
        }
    })
}

/// `chi` of 0 to `prime - 1`.
fn residues(prime: usize) -> Vec<f64> {
    let mut chi = vec![-1.0; prime];
    (1..prime).for_each(|a| chi[a * a % prime] = 1.0);
    chi[0] = 0.0;
    chi
}

fn is_prime(number: usize) -> bool {
    number > 1 && (2..).take_while(|d| d * d <= number).all(|d| !number.is_multiple_of(d))
}
