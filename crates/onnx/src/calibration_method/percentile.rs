//! The range that holds a share of all values.

use super::histogram::{AbsoluteHistogram, CentredHistogram, Histogram};
use super::method::{Seen, Statistic};
use super::min_max::MinMax;
use crate::quantization::Range;

/// Bins of the first sample.
pub(super) const BINS: usize = 2048;

/// A growing histogram: of absolute values where the range shall be symmetric, of all values else.
#[derive(Debug, Clone)]
pub struct Percentile {
    percent: f64,
    values: Values,
    bounds: MinMax,
}

#[derive(Debug, Clone)]
enum Values {
    Absolute(AbsoluteHistogram),
    Signed(CentredHistogram),
}

impl Percentile {
    /// Keeps `percent` of the values.
    pub fn new(percent: f64, symmetric: bool) -> Self {
        let values = match symmetric {
            true => Values::Absolute(AbsoluteHistogram::default()),
            false => Values::Signed(CentredHistogram::default()),
        };
        Self { percent, values, bounds: MinMax::default() }
    }

    /// The histogram so far.
    pub(super) fn histogram(&self) -> &Histogram {
        match &self.values {
            Values::Absolute(histogram) => &histogram.0,
            Values::Signed(histogram) => &histogram.histogram,
        }
    }

    /// The range for another share of the values, never beyond what was observed.
    ///
    /// Symmetric: `t` is the lower edge of the first bin up to which `percent` of the absolute values lie. Else half of what is
    /// left out is left out on either side.
    pub(super) fn range_of(&self, percent: f64) -> Range {
        let histogram = self.histogram();
        let seen = self.bounds.range();
        if histogram.total() == 0 {
            return seen;
        }
        let edge = |share: f64| histogram.edges[histogram.quantile_edge(share)] as f32;
        let found = match self.values {
            Values::Absolute(_) => Range { low: -edge(percent / 100.0), high: edge(percent / 100.0) },
            Values::Signed(_) => {
                let cut = (100.0 - percent) / 200.0;
                Range { low: edge(cut), high: edge(1.0 - cut) }
            }
        };
        let low = found.low.max(seen.low);
        Range { low, high: found.high.min(seen.high).max(low) }
    }
}

impl Statistic for Percentile {
    fn observe(&mut self, seen: &Seen<'_>) {
        self.bounds.observe(seen);
        match &mut self.values {
            Values::Absolute(histogram) => histogram.observe(seen, BINS),
            Values::Signed(histogram) => histogram.observe(seen, BINS),
        }
    }

    fn range(&self) -> Range {
        self.range_of(self.percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numpy's own results: edges are f32, a histogram grows by steps of which the first is rounded to f32.
    #[test]
    fn histograms_grow_as_the_incumbents_do() {
        let sample = |n: u32| -> Vec<f32> {
            let mixed = |i: u32| (i.wrapping_mul(2_654_435_761).wrapping_add(n * 97) >> 8) as f32 / 16_777_216.0 - 0.5;
            (0..768).map(|i| mixed(i) * (2.0 + n as f32)).collect()
        };
        let mut statistic = Percentile::new(99.999, true);
        (0..4).for_each(|n| statistic.observe(&Seen::new(&sample(n))));
        let histogram = statistic.histogram();
        let (bins, last) = (histogram.counts.len(), histogram.edges[histogram.counts.len()] as f32);
        assert_eq!((bins, last, statistic.range().high), (5123, 2.500_487_3, 2.494_065_3));
    }

    #[test]
    fn outliers_are_cut() {
        let mut values: Vec<f32> = (0..100_000).map(|i| (i % 1000) as f32 / 1000.0).collect();
        values.push(50.0);
        let mut statistic = Percentile::new(99.99, true);
        statistic.observe(&Seen::new(&values));
        assert!((0.9..1.1).contains(&statistic.range().high), "{:?}", statistic.range());
        assert_eq!(statistic.range().low, 0.0);
        let mut asymmetric = Percentile::new(99.0, false);
        asymmetric.observe(&Seen::new(&values));
        assert!(asymmetric.range().high < 1.1);
    }
}
