//! Scales and minima of groups as they are stored: each its own binary16 (Q4_1, Q5_1), or small integers that share
//! two of them, `w` being about `d * scale * q - dmin * minimum` (Q2_K, Q4_K, Q5_K). Not how the integers are packed.
//!
//! From the fit of each group ([`super::affine_fit`]) follow `d` and `dmin`, the largest scale and minimum over the greatest
//! integer. For each group the integers around the nearest ones are tried, all pairs of them, with the codes rounded to
//! the stored values. Then `d` and `dmin` are refitted by least squares to these integers and codes, and the result is
//! kept if the total error is lower.

use super::affine_fit::{Affine, AffineSearch};
use super::grouped::Head;
use super::lanes::Lanes;
use super::tile::{Tile, codes_of};

/// `L` blocks of `K` elements: the bits of the scale and of the number that is added, and the codes of each.
#[inline(always)]
pub(super) fn affine_blocks<const K: usize, const L: usize>(
    search: AffineSearch,
    values: &[f32],
    importance: Option<&[f32]>,
) -> ([[u16; 2]; L], [[u8; K]; L]) {
    let tile = Tile::<K, L>::new(values, importance);
    let fit = search.fit(&tile);
    let (mut scale, mut added, mut bits) = (fit.scale, -fit.minimum, [[0; 2]; L]);
    for ((scale, added), bits) in scale.0.iter_mut().zip(&mut added.0).zip(&mut bits) {
        (bits[0], *scale) = tile.stored(*scale);
        (bits[1], *added) = tile.stored(*added);
    }
    let (inverse, levels) = (scale.inverse(), Lanes::splat(search.levels));
    (bits, codes_of(|k| ((tile.values[k] - added) * inverse).max(Lanes::splat(0.0)).min(levels).round()))
}

/// A block of `L` groups of `K` elements, as it is stored.
pub(super) struct AffineBlock<const K: usize, const L: usize> {
    /// Bits of `d` and of `dmin`.
    pub factors: [u16; 2],
    /// The integer scale of each group.
    pub scales: [u8; L],
    /// The integer minimum of each group.
    pub minima: [u8; L],
    /// The codes of each group.
    pub codes: [[u8; K]; L],
}

impl<const K: usize, const L: usize> AffineBlock<K, L> {
    /// The integers, which fit into a byte with a sign, and the codes of 256 elements.
    #[inline(always)]
    pub fn parts(&self) -> (Head<L>, [u8; 256]) {
        let mut codes = [0; 256];
        codes.iter_mut().zip(self.codes.as_flattened()).for_each(|(code, own)| *code = *own);
        let scales = self.scales.map(|scale| scale as i8);
        (Head { factors: self.factors, scales, minima: self.minima }, codes)
    }
}

/// The number of refits of `d` and `dmin`.
const REFITS: usize = 2;

/// The block of `values`; scales and minima are integers from 0 to `greatest`.
#[inline(always)]
pub(super) fn affine_block<const K: usize, const L: usize>(
    search: AffineSearch,
    greatest: f32,
    values: &[f32],
    importance: Option<&[f32]>,
) -> AffineBlock<K, L> {
    let tile = Tile::<K, L>::new(values, importance);
    let fit = search.fit(&tile);
    let storing = Storing { tile: &tile, fit, levels: Lanes::splat(search.levels), greatest: Lanes::splat(greatest) };
    let mut best = Choice::none(fit.scale.largest() / greatest, fit.minimum.largest() / greatest);
    // The first round takes the numbers as they are: the choice is long, and compiled into every type.
    for round in 0..=REFITS {
        let (d, dmin) = if round == 0 { (best.d, best.dmin) } else { storing.refit(&best) };
        let other = storing.choose(d, dmin);
        if round == 0 || other.error.sum() < best.error.sum() {
            best = other;
        }
    }
    storing.block(&best)
}

/// The choice among integers for given `d` and `dmin`.
struct Storing<'a, const K: usize, const L: usize> {
    tile: &'a Tile<K, L>,
    fit: Affine<L>,
    levels: Lanes<L>,
    greatest: Lanes<L>,
}

/// The choice made.
#[derive(Clone, Copy)]
struct Choice<const L: usize> {
    factors: [u16; 2],
    /// `d` and `dmin` in units.
    d: f32,
    dmin: f32,
    scale: Lanes<L>,
    minimum: Lanes<L>,
    error: Lanes<L>,
}

impl<const L: usize> Choice<L> {
    /// Before anything was chosen.
    #[inline(always)]
    fn none(d: f32, dmin: f32) -> Self {
        let (zero, error) = (Lanes::splat(0.0), Lanes::splat(f32::INFINITY));
        Choice { factors: [0; 2], d, dmin, scale: zero, minimum: zero, error }
    }
}

impl<const K: usize, const L: usize> Storing<'_, K, L> {
    #[inline(always)]
    fn choose(&self, d: f32, dmin: f32) -> Choice<L> {
        let ((d_bits, d), (dmin_bits, dmin)) = (self.tile.stored(d), self.tile.stored(dmin));
        let nearest = |number: Lanes<L>, factor: f32| (number * Lanes::splat(factor).inverse()).round();
        let (scale, minimum) = (nearest(self.fit.scale, d), nearest(self.fit.minimum, dmin));
        let error = Lanes::splat(f32::INFINITY);
        let mut best = Choice { factors: [d_bits, dmin_bits], d, dmin, scale, minimum, error };
        for step in 0..9 {
            let scale = self.within(scale + Lanes::splat((step / 3 - 1) as f32));
            let minimum = self.within(minimum + Lanes::splat((step % 3 - 1) as f32));
            let error = self.error(scale * Lanes::splat(d), minimum * Lanes::splat(dmin));
            best.scale = scale.where_less(error, best.error, best.scale);
            best.minimum = minimum.where_less(error, best.error, best.minimum);
            best.error = error.min(best.error);
        }
        best
    }

    #[inline(always)]
    fn within(&self, integer: Lanes<L>) -> Lanes<L> {
        integer.max(Lanes::splat(0.0)).min(self.greatest)
    }

    /// The codes nearest to row `k`.
    #[inline(always)]
    fn codes(&self, k: usize, inverse: Lanes<L>, minimum: Lanes<L>) -> Lanes<L> {
        ((self.tile.values[k] + minimum) * inverse).max(Lanes::splat(0.0)).min(self.levels).round()
    }

    #[inline(always)]
    fn error(&self, scale: Lanes<L>, minimum: Lanes<L>) -> Lanes<L> {
        let inverse = scale.inverse();
        let mut error = Lanes::splat(0.0);
        for k in 0..K {
            let difference = (self.codes(k, inverse, minimum) * scale - minimum) - self.tile.values[k];
            error = error + difference * difference * self.tile.weights[k];
        }
        error
    }

    /// The `d` and `dmin` of least squares for the integers and codes of `choice`.
    #[inline(always)]
    fn refit(&self, choice: &Choice<L>) -> (f32, f32) {
        let (scale, minimum) = (choice.scale, choice.minimum);
        let inverse = (scale * Lanes::splat(choice.d)).inverse();
        let shift = minimum * Lanes::splat(choice.dmin);
        let (mut w, mut wx, mut wq) = (Lanes::splat(0.0), Lanes::splat(0.0), Lanes::splat(0.0));
        let (mut wqq, mut wqx) = (Lanes::splat(0.0), Lanes::splat(0.0));
        for k in 0..K {
            let (q, x, weight) = (self.codes(k, inverse, shift), self.tile.values[k], self.tile.weights[k]);
            let weighted = q * weight;
            (w, wx, wq) = (w + weight, wx + weight * x, wq + weighted);
            (wqq, wqx) = (wqq + weighted * q, wqx + weighted * x);
        }
        let (ss, sm, mm) = ((scale * scale * wqq).sum(), (scale * minimum * wq).sum(), (minimum * minimum * w).sum());
        let (sx, mx) = ((scale * wqx).sum(), (minimum * wx).sum());
        solve([ss, sm, mm], [sx, mx]).unwrap_or((choice.d, choice.dmin))
    }

    #[inline(always)]
    fn block(&self, choice: &Choice<L>) -> AffineBlock<K, L> {
        let inverse = (choice.scale * Lanes::splat(choice.d)).inverse();
        let shift = choice.minimum * Lanes::splat(choice.dmin);
        AffineBlock {
            factors: choice.factors,
            scales: choice.scale.0.map(|scale| scale as i32 as u8),
            minima: choice.minimum.0.map(|minimum| minimum as i32 as u8),
            codes: codes_of(|k| self.codes(k, inverse, shift)),
        }
    }
}

/// The minimum of `sum w (d s q - dmin m - x)^2`, neither number negative: `d ss - dmin sm = sx`, `d sm - dmin mm = mx`.
#[inline(always)]
fn solve([ss, sm, mm]: [f32; 3], [sx, mx]: [f32; 2]) -> Option<(f32, f32)> {
    let determinant = ss * mm - sm * sm;
    let both = ((sx * mm - sm * mx) / determinant, (sm * sx - ss * mx) / determinant);
    let alone = (sx / ss, 0.0);
    let usable = |(d, dmin): &(f32, f32)| *d > 0.0 && *dmin >= 0.0 && d.is_finite() && dmin.is_finite();
    Some(both).filter(usable).or(Some(alone).filter(usable))
}
