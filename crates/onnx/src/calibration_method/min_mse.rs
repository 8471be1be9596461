//! The scale with the least squared error on a histogram of the values.

use super::histogram::{Histogram, SignedHistogram};
use super::method::{Seen, Statistic};
use super::min_max::MinMax;
use super::percentile::BINS;
use crate::element::{CodeRange, Element};
use crate::quantization::{Affine, Range, ScaleKind, affine};

/// Powers of two tried: twice the plain scale, itself, and three halvings.
const POWERS: i32 = 5;
/// Shares of the observed range tried for float scales: 1/100 to 100/100.
const SHARES: usize = 100;

/// A growing histogram of signed values.
#[derive(Debug, Clone)]
pub struct MinMse {
    element: Element,
    symmetric: bool,
    scale: ScaleKind,
    values: SignedHistogram,
    bounds: MinMax,
}

impl MinMse {
    /// For an element type and a kind of scale.
    pub fn new(element: Element, symmetric: bool, scale: ScaleKind) -> Self {
        Self { element, symmetric, scale, values: SignedHistogram::default(), bounds: MinMax::default() }
    }

    /// The squared error of all values so far, were they quantized with a scale.
    pub fn error(&self, codes: CodeRange, affine: Affine) -> f64 {
        squared_error(&self.values.0, codes, affine)
    }
}

/// The candidates for a range: powers of two about its scale, or shares of it. `affine` makes the scale of a range.
pub(crate) fn candidates(range: Range, kind: ScaleKind, affine: impl Fn(Range) -> Affine) -> Vec<Affine> {
    let plain = affine(range);
    let share = |i: usize| {
        let part = i as f32 / SHARES as f32;
        affine(Range { low: range.low * part, high: range.high * part })
    };
    match kind {
        ScaleKind::PowerOfTwo => {
            (0..POWERS).map(|i| Affine { scale: plain.scale * 2f32.powi(1 - i), ..plain }).collect()
        }
        _ => (1..=SHARES).rev().map(share).collect(),
    }
}

/// `sum count (c - dq(c))^2` over bin centres c, rounded to f32.
fn squared_error(histogram: &Histogram, codes: CodeRange, affine: Affine) -> f64 {
    let error = |centre: f64| {
        let centre = centre as f32;
        let code = ((centre / affine.scale).round_ties_even() as i64).saturating_add(affine.zero_point);
        let code = code.clamp(codes.min, codes.max);
        f64::from(centre) - (code - affine.zero_point) as f64 * f64::from(affine.scale)
    };
    let filled = histogram.centres().zip(&histogram.counts).filter(|&(_, &count)| count > 0);
    filled.map(|(centre, &count)| count as f64 * error(centre) * error(centre)).sum()
}

impl Statistic for MinMse {
    fn observe(&mut self, seen: &Seen<'_>) {
        self.bounds.observe(seen);
        self.values.observe(seen, BINS);
    }

    fn range(&self) -> Range {
        let seen = self.bounds.range();
        let Some(codes) = self.element.range(self.symmetric) else { return seen };
        let error = |affine: &Affine| self.error(codes, *affine);
        let scored = candidates(seen, self.scale, |range| affine(range, self.element, self.symmetric, self.scale))
            .into_iter()
            .map(|c| (error(&c), c));
        // The first of equals.
        let best = scored.reduce(|best, next| if next.0 < best.0 { next } else { best });
        best.map_or(seen, |(_, affine)| span(affine, codes))
    }
}

/// The values between the smallest and the largest code.
fn span(affine: Affine, codes: CodeRange) -> Range {
    let value = |code: i64| ((code - affine.zero_point) as f64 * f64::from(affine.scale)) as f32;
    Range { low: value(codes.min), high: value(codes.max) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_that_cuts_an_outlier_wins() {
        let mut values: Vec<f32> = (0..10_000).map(|i| (i % 100) as f32 / 100.0 - 0.5).collect();
        values.push(8.0);
        let range = |kind| {
            let mut statistic = MinMse::new(Element::Int4, true, kind);
            statistic.observe(&Seen::new(&values));
            statistic.range()
        };
        assert!(range(ScaleKind::Float).high < 4.0, "{:?}", range(ScaleKind::Float));
        let powers = range(ScaleKind::PowerOfTwo);
        assert_eq!((powers.high / 7.0).log2().fract(), 0.0, "{powers:?}");
    }
}
