//! The running softmax of 32 queries: the largest score so far, the sum of weights, and the correction of what was summed
//! with a smaller one.

use super::mask::Seen;
use super::{AttentionRule, BAND, ScoreBias, Square};
use crate::linalg::elementary::{exp2, tanh};
use crate::linalg::precision::Precision;
use crate::simd::{Isa, Loop, SIDE, Tile, dispatch};
use std::f32::consts::LOG2_E;

/// One number for each query.
type Each = [[f32; SIDE]; 2];

/// Below every score.
const NOTHING: f32 = -1e30;
/// The score of masked keys: its weight, relative even to [`NOTHING`], is the least normal number, which is lost in
/// every sum.
const HIDDEN: f32 = -2e30;
/// By how much, as a power of two, a weight may exceed 1 before all is taken relative to a larger score: corrections are
/// rare then, and the quotient is the same.
const SLACK: f32 = 8.0;

/// The state of a running softmax. Scores are taken times `log2 e`, so that weights are powers of two.
pub(super) struct Softmax<'a> {
    isa: Isa,
    rule: AttentionRule<'a>,
    precision: Precision,
    /// The reference of scores: at most [`SLACK`] below the largest.
    base: Each,
    /// The sum of weights.
    sum: Each,
}

impl<'a> Softmax<'a> {
    pub(super) fn new(isa: Isa, rule: AttentionRule<'a>, precision: Precision) -> Softmax<'a> {
        let (base, sum) = rule.sink.map_or((NOTHING, 0.0), |sink| (sink * LOG2_E, 1.0));
        Softmax { isa, rule, precision, base: [[base; SIDE]; 2], sum: [[sum; SIDE]; 2] }
    }

    /// Turns scores of bands from `band` on into weights, and corrects `sums` where weights are relative to a larger score
    /// than before.
    pub(super) fn weigh(&mut self, seen: Seen<'_>, band: usize, scores: &mut [Square], sums: &mut [Square]) {
        let largest = dispatch(self.isa, Scale { rule: self.rule, seen, band, scores: &mut *scores });
        self.raise(largest, sums);
        let (base, sum) = (&self.base, &mut self.sum);
        dispatch(self.isa, Weigh { precision: self.precision, base, sum, scores });
    }

    /// Takes what follows relative to larger scores, where they are too large.
    fn raise(&mut self, largest: Each, sums: &mut [Square]) {
        let mut factors = [[1.0; SIDE]; 2];
        let mut raised = false;
        for group in 0..2 {
            for lane in 0..SIDE {
                let (base, largest) = (&mut self.base[group][lane], largest[group][lane]);
                if largest > *base + SLACK {
                    raised = true;
                    factors[group][lane] = exp2(*base - largest);
                    self.sum[group][lane] *= factors[group][lane];
                    *base = largest;
                }
            }
        }
        if raised {
            dispatch(self.isa, Multiply { factors, precision: Precision::F32, sums });
        }
    }

    /// Divides the sums of weighted values by those of weights.
    pub(super) fn divide(&self, sums: &mut [Square]) {
        // Queries that are not there have seen nothing.
        let factors = self.sum.map(|group| group.map(|sum| if sum > 0.0 { 1.0 / sum } else { 1.0 }));
        dispatch(self.isa, Multiply { factors, precision: self.precision, sums });
    }
}

/// Applies scale and soft-cap, and finds the largest score that each query sees.
struct Scale<'a> {
    rule: AttentionRule<'a>,
    seen: Seen<'a>,
    band: usize,
    scores: &'a mut [Square],
}

impl Loop for Scale<'_> {
    type Output = Each;

    #[inline(always)]
    fn run(self) -> Each {
        let Scale { rule, seen, band, scores } = self;
        let mut largest = [[NOTHING; SIDE]; 2];
        for (index, square) in scores.iter_mut().enumerate() {
            let whole = seen.is_whole(band + index);
            for (half, pair) in square.iter_mut().enumerate() {
                let first = (band + index) * BAND + half * SIDE;
                for (group, (tile, largest)) in pair.iter_mut().zip(&mut largest).enumerate() {
                    rule.apply(tile, first, seen.first + group * SIDE);
                    if !whole {
                        hide(tile, seen, group * SIDE, first);
                    }
                    for rows in tile.0.as_chunks::<4>().0 {
                        for (lane, largest) in largest.iter_mut().enumerate() {
                            let [a, b, c, d] = rows.each_ref().map(|row| f32::from_bits(row[lane]));
                            *largest = larger(*largest, larger(larger(a, b), larger(c, d)));
                        }
                    }
                }
            }
        }
        largest
    }
}

impl AttentionRule<'_> {
    /// Scale, soft-cap and the biases of keys from position `first` on and of queries from `query` on, times `log2 e`.
    #[inline(always)]
    fn apply(self, Tile(rows): &mut Tile, first: usize, query: usize) {
        match self.cap {
            None => {
                let scale = self.scale * LOG2_E;
                for score in rows.as_flattened_mut() {
                    *score = (f32::from_bits(*score) * scale).to_bits();
                }
            }
            Some(cap) => {
                let (inner, outer) = (self.scale / cap, cap * LOG2_E);
                for score in rows.as_flattened_mut() {
                    *score = (outer * tanh(f32::from_bits(*score) * inner)).to_bits();
                }
            }
        }
        match self.bias {
            ScoreBias::OfKeys(_) => {
                for (row, bias) in rows.iter_mut().zip(self.bias.of_query(query, first)) {
                    for score in row {
                        *score = (f32::from_bits(*score) + bias * LOG2_E).to_bits();
                    }
                }
            }
            ScoreBias::OfDistances(_) | ScoreBias::OfPairs { .. } => {
                for lane in 0..SIDE {
                    for (row, bias) in rows.iter_mut().zip(self.bias.of_query(query + lane, first)) {
                        row[lane] = (f32::from_bits(row[lane]) + bias * LOG2_E).to_bits();
                    }
                }
            }
        }
    }
}

/// Makes the scores of keys from position `first` on that queries from the `from`-th on do not see so small that their
/// weights are nothing.
#[inline(always)]
fn hide(Tile(rows): &mut Tile, seen: Seen<'_>, from: usize, first: usize) {
    for (line, row) in rows.iter_mut().enumerate() {
        let seen = seen.lanes(from, first + line);
        for (score, seen) in row.iter_mut().zip(seen) {
            *score = if seen { *score } else { HIDDEN.to_bits() };
        }
    }
}

/// From scores to weights.
struct Weigh<'a> {
    precision: Precision,
    base: &'a Each,
    sum: &'a mut Each,
    scores: &'a mut [Square],
}

impl Loop for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Weigh { precision, base, sum, scores } = self;
        for pair in scores.as_flattened_mut() {
            for (tile, (base, sum)) in pair.iter_mut().zip(base.iter().zip(&mut *sum)) {
                for [a, b] in tile.0.as_chunks_mut::<2>().0 {
                    for (lane, (base, sum)) in base.iter().zip(&mut *sum).enumerate() {
                        let weights = [a[lane], b[lane]].map(|score| exp2(f32::from_bits(score) - base));
                        *sum += weights[0] + weights[1];
                        [a[lane], b[lane]] = weights.map(|weight| precision.round(weight).to_bits());
                    }
                }
            }
        }
    }
}

/// Multiplies what belongs to each query by a factor.
struct Multiply<'a> {
    factors: Each,
    precision: Precision,
    sums: &'a mut [Square],
}

impl Loop for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Multiply { factors, precision, sums } = self;
        for pair in sums.as_flattened_mut() {
            for (tile, factors) in pair.iter_mut().zip(&factors) {
                for row in &mut tile.0 {
                    for (sum, factor) in row.iter_mut().zip(factors) {
                        *sum = precision.round(f32::from_bits(*sum) * factor).to_bits();
                    }
                }
            }
        }
    }
}

/// The larger of two numbers, in one instruction; NaN in `b` is lost.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}
