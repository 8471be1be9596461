//! The search for a scale of each group: `w` is about `scale * level`. Not how scales are stored: see
//! [`super::symmetric_scales`].
//!
//! The element of the largest magnitude is brought onto a number `f` beyond or before one end of the levels, for several
//! `f`, all others with it, and rounded. For the levels of each trial the scale of least weighted squares is
//! `sum w x l / sum w l^2`, which takes `(sum w x l)^2 / sum w l^2` off the error. The best is refined by rounding to it and
//! fitting again (Lloyd's iteration), which never makes it worse.

use super::grid::Grid;
use super::lanes::Lanes;
use super::tile::Tile;

/// Factors that are tried: `count` of them from `first` on.
#[derive(Clone, Copy)]
pub(super) struct Trials {
    pub first: f32,
    pub step: f32,
    pub count: usize,
}

/// The search space.
#[derive(Clone, Copy)]
pub(super) struct SymmetricSearch<G> {
    pub grid: G,
    /// With the largest magnitude at the negative end of the levels, and at the positive one.
    pub ends: [Trials; 2],
    /// The number of refinements of the best scale.
    pub refinements: usize,
}

/// A scale of unit elements, and the error that it removes.
#[derive(Clone, Copy)]
struct Slope<const L: usize> {
    slope: Lanes<L>,
    gain: Lanes<L>,
}

impl<G: Grid> SymmetricSearch<G> {
    /// The best scale of those tried, of either sign, for each group, in units of the tile.
    #[inline(always)]
    pub fn fit<const K: usize, const L: usize>(self, tile: &Tile<K, L>) -> Lanes<L> {
        let extreme = extremes(tile);
        let inverse = extreme.inverse();
        let mut unit = tile.values;
        for value in &mut unit {
            *value = *value * inverse;
        }
        let mut best = Slope { slope: Lanes::splat(0.0), gain: Lanes::splat(0.0) };
        // One loop for all: the body is long, and compiled into every type.
        let [negative, positive] = self.ends;
        let trials = negative.count + positive.count;
        for step in 0..trials + self.refinements {
            let (end, index) = if step < negative.count { (negative, step) } else { (positive, step - negative.count) };
            let factor = Lanes::splat(end.first + end.step * index as f32);
            let factor = if step < trials { factor } else { best.slope.inverse() };
            best = self.better(best, factor, &unit, &tile.weights);
        }
        best.slope * extreme
    }

    /// `best`, or the scale that is fitted to the levels nearest to `unit * factor`.
    #[inline(always)]
    fn better<const K: usize, const L: usize>(
        self,
        best: Slope<L>,
        factor: Lanes<L>,
        unit: &[Lanes<L>; K],
        weights: &[Lanes<L>; K],
    ) -> Slope<L> {
        let (mut with_value, mut with_level) = (Lanes::splat(0.0), Lanes::splat(0.0));
        for (value, weight) in unit.iter().zip(weights) {
            let level = self.grid.nearest(*value * factor);
            let weighted = level * *weight;
            with_value = with_value + weighted * *value;
            with_level = with_level + weighted * level;
        }
        let slope = with_value / with_level;
        let gain = with_value * slope;
        Slope {
            slope: slope.where_less(best.gain, gain, best.slope),
            gain: gain.where_less(best.gain, gain, best.gain),
        }
    }
}

/// The element of the largest magnitude of each group, with its sign.
#[inline(always)]
fn extremes<const K: usize, const L: usize>(tile: &Tile<K, L>) -> Lanes<L> {
    let (mut low, mut high) = (Lanes::splat(0.0), Lanes::splat(0.0));
    for value in &tile.values {
        (low, high) = (value.min(low), value.max(high));
    }
    low.where_less(high, -low, high)
}
