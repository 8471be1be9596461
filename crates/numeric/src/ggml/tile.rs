//! The input of a scale search: values and weights of several groups, transposed to lanes and normalised to a common
//! magnitude. Not the searches.

use super::grid::Grid;
use super::lanes::Lanes;
use super::scale::{f16_bits, inverse};
use crate::arithmetic::f16_to_f32;

/// `L` groups of `K` elements: element `k` of every group is in row `k`.
pub(super) struct Tile<const K: usize, const L: usize> {
    /// Values over [`Tile::unit`], so that the largest magnitude is from 1 to 4 (less where it is subnormal): squares
    /// neither overflow nor vanish.
    pub values: [Lanes<L>; K],
    /// Weights, from 2^-20 to 1. None is 0, so that columns nobody has seen are rounded sensibly too.
    pub weights: [Lanes<L>; K],
    /// A power of two.
    pub unit: f32,
}

/// The share of the largest weight that all have at least.
const LEAST_WEIGHT: f32 = 1.0 / 1_048_576.0;

impl<const K: usize, const L: usize> Tile<K, L> {
    /// A tile of `K * L` values, one group after the other, and as many weights. Where there are no weights, or the
    /// largest of them is 0 or not finite, all elements weigh the same.
    #[inline(always)]
    pub fn new(values: &[f32], importance: Option<&[f32]>) -> Self {
        let factor = f32::from_bits((254 - exponent(largest_magnitude(values)).min(253)) << 23);
        let weights = importance.and_then(weights_of);
        let weights = weights.unwrap_or([Lanes::splat(1.0); K]);
        Tile { values: transpose(values, |value| value * factor), weights, unit: 1.0 / factor }
    }

    /// The largest magnitude of each group.
    #[inline(always)]
    pub fn magnitudes(&self) -> Lanes<L> {
        self.values.iter().fold(Lanes::splat(0.0), |max, value| value.map(f32::abs).max(max))
    }

    /// The weighted squared error of each group with this scale, all elements at the nearest level.
    #[inline(always)]
    pub fn error(&self, grid: impl Grid, scale: Lanes<L>) -> Lanes<L> {
        let inverse = scale.inverse();
        let mut error = Lanes::splat(0.0);
        for (value, weight) in self.values.iter().zip(&self.weights) {
            let difference = grid.nearest(*value * inverse) * scale - *value;
            error = error + difference * difference * *weight;
        }
        error
    }

    /// The bits of the nearest binary16 of a scale that is given in units, and what these bits are in units.
    #[inline(always)]
    pub fn stored(&self, scale: f32) -> (u16, f32) {
        let bits = f16_bits(scale * self.unit);
        let stored = f16_to_f32(bits) * (1.0 / self.unit);
        if stored.is_finite() { (bits, stored) } else { (0, 0.0) }
    }
}

/// The exponent field of a number without sign.
#[inline(always)]
fn exponent(value: f32) -> u32 {
    value.to_bits() >> 23
}

/// Magnitudes order as their bits, and maxima of integers depend on no order.
#[inline(always)]
pub(super) fn largest_magnitude(values: &[f32]) -> f32 {
    f32::from_bits(values.iter().fold(0, |max, value| max.max(value.to_bits() & 0x7FFF_FFFF)))
}

#[inline(always)]
fn weights_of<const K: usize, const L: usize>(importance: &[f32]) -> Option<[Lanes<L>; K]> {
    let largest = largest_magnitude(importance);
    let inverse = inverse(largest);
    let usable = inverse > 0.0 && largest.is_finite();
    usable.then(|| transpose(importance, |weight| (weight * inverse).max(LEAST_WEIGHT)))
}

#[inline(always)]
fn transpose<const K: usize, const L: usize>(numbers: &[f32], f: impl Fn(f32) -> f32) -> [Lanes<L>; K] {
    let mut rows = [Lanes::splat(0.0); K];
    for (lane, group) in numbers.chunks_exact(K).take(L).enumerate() {
        for (row, number) in rows.iter_mut().zip(group) {
            row.0[lane] = f(*number);
        }
    }
    rows
}

/// Codes of one group after the other, of rows of them.
#[inline(always)]
pub(super) fn codes_of<const K: usize, const L: usize>(rows: impl Fn(usize) -> Lanes<L>) -> [[u8; K]; L] {
    let mut codes = [[0; K]; L];
    for k in 0..K {
        let row = rows(k);
        for (group, code) in codes.iter_mut().zip(row.0) {
            group[k] = code as i32 as u8;
        }
    }
    codes
}
