//! The search for a scale and a minimum of each group: `w` is about `scale * q - minimum`, `q` from 0 to `levels`. Not how
//! scales and minima are stored: see [`super::affine_scales`].
//!
//! With `t` from 0 to 1 over the range of the group, `q = round(t * f)` is tried for factors `f` around `levels`. For the
//! codes of each, the line `t = slope * q + offset` of least weighted squares is found in closed form, and the best line of
//! all is refined by rounding to it and fitting again (Lloyd's iteration), which never makes it worse.

use super::lanes::Lanes;
use super::tile::Tile;

/// The search space.
#[derive(Clone, Copy)]
pub(super) struct AffineSearch {
    /// The greatest code.
    pub levels: f32,
    /// The first factor, less `levels`.
    pub first: f32,
    /// From one factor to the next.
    pub step: f32,
    /// The number of factors tried.
    pub trials: usize,
    /// The number of refinements of the best line.
    pub refinements: usize,
    /// Whether minima are stored without a sign, so that code 0 is 0 or less.
    pub covers_zero: bool,
}

/// A scale, not negative, and a minimum for each group, in units of the tile.
#[derive(Clone, Copy)]
pub(super) struct Affine<const L: usize> {
    pub scale: Lanes<L>,
    pub minimum: Lanes<L>,
}

impl AffineSearch {
    /// The best candidate for each group.
    #[inline(always)]
    pub fn fit<const K: usize, const L: usize>(self, tile: &Tile<K, L>) -> Affine<L> {
        let (low, high) = self.bounds(tile);
        let range = high - low;
        let group = Group::new(tile, low, range.inverse(), self.covers_zero);
        let levels = Lanes::splat(self.levels);
        let mut best = Line { slope: levels.inverse(), offset: Lanes::splat(0.0), error: Lanes::splat(f32::INFINITY) };
        // One loop for both: the body is long, and compiled into every type.
        for step in 0..self.trials + self.refinements {
            let factor = Lanes::splat(self.levels + self.first + self.step * step as f32);
            let refined = step >= self.trials;
            let (inverse, offset) =
                if refined { (best.slope.inverse(), best.offset) } else { (factor, Lanes::splat(0.0)) };
            best = best.or(group.line(inverse, offset, levels));
        }
        Affine { scale: best.slope * range, minimum: -(low + best.offset * range) }
    }

    #[inline(always)]
    fn bounds<const K: usize, const L: usize>(self, tile: &Tile<K, L>) -> (Lanes<L>, Lanes<L>) {
        let (mut low, mut high) = (tile.values[0], tile.values[0]);
        for value in &tile.values {
            (low, high) = (value.min(low), value.max(high));
        }
        if self.covers_zero { (low.min(Lanes::splat(0.0)), high) } else { (low, high) }
    }
}

/// Elements from 0 to 1 over their range, and what of the sums does not depend on codes.
struct Group<'a, const K: usize, const L: usize> {
    t: [Lanes<L>; K],
    weights: &'a [Lanes<L>; K],
    weight: Lanes<L>,
    weighted_t: Lanes<L>,
    /// The greatest offset of a line.
    offset_limit: Lanes<L>,
}

/// `t = slope * q + offset`, and its error but for a term that all lines share.
#[derive(Clone, Copy)]
struct Line<const L: usize> {
    slope: Lanes<L>,
    offset: Lanes<L>,
    error: Lanes<L>,
}

impl<const L: usize> Line<L> {
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Line {
            slope: other.slope.where_less(other.error, self.error, self.slope),
            offset: other.offset.where_less(other.error, self.error, self.offset),
            error: other.error.min(self.error),
        }
    }
}

impl<'a, const K: usize, const L: usize> Group<'a, K, L> {
    #[inline(always)]
    fn new(tile: &'a Tile<K, L>, low: Lanes<L>, inverse_range: Lanes<L>, covers_zero: bool) -> Self {
        let mut t = tile.values;
        let (mut weight, mut weighted_t) = (Lanes::splat(0.0), Lanes::splat(0.0));
        for (t, w) in t.iter_mut().zip(&tile.weights) {
            *t = (*t - low) * inverse_range;
            weight = weight + *w;
            weighted_t = weighted_t + *w * *t;
        }
        let zero = -low * inverse_range;
        let offset_limit = if covers_zero { zero } else { Lanes::splat(f32::INFINITY) };
        Group { t, weights: &tile.weights, weight, weighted_t, offset_limit }
    }

    /// The line of least squares through the codes nearest to `(t - offset) * inverse`.
    #[inline(always)]
    fn line(&self, inverse: Lanes<L>, offset: Lanes<L>, levels: Lanes<L>) -> Line<L> {
        let (mut sum_q, mut sum_qq, mut sum_qt) = (Lanes::splat(0.0), Lanes::splat(0.0), Lanes::splat(0.0));
        for (t, w) in self.t.iter().zip(self.weights) {
            let q = ((*t - offset) * inverse).round().max(Lanes::splat(0.0)).min(levels);
            let weighted = q * *w;
            sum_q = sum_q + weighted;
            sum_qq = sum_qq + weighted * q;
            sum_qt = sum_qt + weighted * *t;
        }
        self.solve(sum_q, sum_qq, sum_qt)
    }

    #[inline(always)]
    fn solve(&self, sum_q: Lanes<L>, sum_qq: Lanes<L>, sum_qt: Lanes<L>) -> Line<L> {
        let (sum, sum_t) = (self.weight, self.weighted_t);
        let determinant = sum * sum_qq - sum_q * sum_q;
        let slope = (sum * sum_qt - sum_t * sum_q) / determinant;
        let offset = (sum_t - slope * sum_q) / sum;
        let limit = self.offset_limit;
        let slope = ((sum_qt - limit * sum_q) / sum_qq).where_less(limit, offset, slope);
        let offset = limit.min(offset);
        let of_slope = slope * (slope * sum_qq + (offset * sum_q - sum_qt) * Lanes::splat(2.0));
        let error = of_slope + offset * (offset * sum - sum_t * Lanes::splat(2.0));
        // A line that rises, of codes that are not all one; what is NaN is not below anything.
        let usable = error.where_less(Lanes::splat(0.0), slope, Lanes::splat(f32::INFINITY));
        Line { slope, offset, error: usable.where_less(Lanes::splat(0.0), determinant, Lanes::splat(f32::INFINITY)) }
    }
}
