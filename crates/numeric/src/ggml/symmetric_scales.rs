//! Scales of groups as they are stored: each its own binary16 (Q4_0, Q5_0, IQ4_NL), or small signed integers that
//! share one, `w` being about `d * scale * level` (Q3_K, Q6_K, IQ4_XS). Not how the integers are packed.
//!
//! From the fit of each group ([`super::symmetric_fit`]) follows `d`, which brings the scale of the largest magnitude onto the
//! least integer. For each group the integers around the nearest one are tried, with levels rounded to what is stored. Then
//! `d` is fitted again by least squares to these integers and levels, and all of it is kept if the total error is lower.

use super::grid::Grid;
use super::grouped::Head;
use super::lanes::Lanes;
use super::symmetric_fit::SymmetricSearch;
use super::tile::{Tile, codes_of};

/// `L` blocks of `K` elements: the bits of their scales, and their codes.
#[inline(always)]
pub(super) fn symmetric_blocks<G: Grid, const K: usize, const L: usize>(
    search: SymmetricSearch<G>,
    values: &[f32],
    importance: Option<&[f32]>,
) -> ([u16; L], [[u8; K]; L]) {
    let tile = Tile::<K, L>::new(values, importance);
    let mut scale = search.fit(&tile);
    let mut bits = [0; L];
    for (scale, bits) in scale.0.iter_mut().zip(&mut bits) {
        (*bits, *scale) = tile.stored(*scale);
    }
    let (grid, inverse) = (search.grid, scale.inverse());
    (bits, codes_of(|k| grid.codes(grid.nearest(tile.values[k] * inverse))))
}

/// A block of `L` groups of `K` elements, as it is stored.
pub(super) struct SymmetricBlock<const K: usize, const L: usize> {
    /// Bits of `d`.
    pub factor: u16,
    /// The integer scale of each group.
    pub scales: [i8; L],
    /// The codes of each group.
    pub codes: [[u8; K]; L],
}

impl<const K: usize, const L: usize> SymmetricBlock<K, L> {
    /// The integers and the codes of 256 elements.
    #[inline(always)]
    pub fn parts(&self) -> (Head<L>, [u8; 256]) {
        let mut codes = [0; 256];
        codes.iter_mut().zip(self.codes.as_flattened()).for_each(|(code, own)| *code = *own);
        (Head { factors: [self.factor, 0], scales: self.scales, minima: [0; L] }, codes)
    }
}

/// The number of refits of `d`.
const REFITS: usize = 2;

/// The block of `values`; scales are integers from `-half` to `half - 1`.
#[inline(always)]
pub(super) fn symmetric_block<G: Grid, const K: usize, const L: usize>(
    search: SymmetricSearch<G>,
    half: f32,
    values: &[f32],
    importance: Option<&[f32]>,
) -> SymmetricBlock<K, L> {
    let tile = Tile::<K, L>::new(values, importance);
    let fit = search.fit(&tile);
    let storing = Storing { tile: &tile, fit, grid: search.grid, half };
    let (zero, error) = (Lanes::splat(0.0), Lanes::splat(f32::INFINITY));
    let mut best = Choice { factor: 0, d: extreme(fit) / -half, scale: zero, error };
    // The first round takes `d` as it is: the choice is long, and compiled into every type.
    for round in 0..=REFITS {
        let other = storing.choose(if round == 0 { best.d } else { storing.refit(&best) });
        if round == 0 || other.error.sum() < best.error.sum() {
            best = other;
        }
    }
    storing.block(&best)
}

/// The first number of the largest magnitude.
#[inline(always)]
fn extreme<const L: usize>(numbers: Lanes<L>) -> f32 {
    numbers.0.iter().fold(0.0, |extreme: f32, number| if number.abs() > extreme.abs() { *number } else { extreme })
}

/// The choice among integers for a given `d`.
struct Storing<'a, G, const K: usize, const L: usize> {
    tile: &'a Tile<K, L>,
    fit: Lanes<L>,
    grid: G,
    half: f32,
}

/// The choice made.
#[derive(Clone, Copy)]
struct Choice<const L: usize> {
    factor: u16,
    /// In units.
    d: f32,
    scale: Lanes<L>,
    error: Lanes<L>,
}

impl<G: Grid, const K: usize, const L: usize> Storing<'_, G, K, L> {
    #[inline(always)]
    fn choose(&self, d: f32) -> Choice<L> {
        let (factor, d) = self.tile.stored(d);
        let nearest = (self.fit * Lanes::splat(d).inverse()).round();
        let mut best = Choice { factor, d, scale: nearest, error: Lanes::splat(f32::INFINITY) };
        // The nearest one first: it is kept if others are no better.
        for step in [0_i8, 1, -1] {
            let within = (nearest + Lanes::splat(f32::from(step))).max(Lanes::splat(-self.half));
            let scale = within.min(Lanes::splat(self.half - 1.0));
            let error = self.tile.error(self.grid, scale * Lanes::splat(d));
            best.scale = scale.where_less(error, best.error, best.scale);
            best.error = error.min(best.error);
        }
        best
    }

    /// The `d` of least squares for the integers and levels of `choice`.
    #[inline(always)]
    fn refit(&self, choice: &Choice<L>) -> f32 {
        let inverse = (choice.scale * Lanes::splat(choice.d)).inverse();
        let (mut with_value, mut with_level) = (Lanes::splat(0.0), Lanes::splat(0.0));
        for (value, weight) in self.tile.values.iter().zip(&self.tile.weights) {
            let level = self.grid.nearest(*value * inverse);
            let weighted = level * *weight;
            with_value = with_value + weighted * *value;
            with_level = with_level + weighted * level;
        }
        let (scale, d) = (choice.scale, choice.d);
        let fitted = (scale * with_value).sum() / (scale * scale * with_level).sum();
        if fitted.is_finite() { fitted } else { d }
    }

    #[inline(always)]
    fn block(&self, choice: &Choice<L>) -> SymmetricBlock<K, L> {
        let inverse = (choice.scale * Lanes::splat(choice.d)).inverse();
        SymmetricBlock {
            factor: choice.factor,
            scales: choice.scale.0.map(|scale| scale as i32 as i8),
            codes: codes_of(|k| self.grid.codes(self.grid.nearest(self.tile.values[k] * inverse))),
        }
    }
}
