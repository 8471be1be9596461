//! The range that holds a share of all values.

use super::histogram::{AbsoluteHistogram, CentredHistogram, Histogram};
use super::method::Statistic;
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
    fn observe(&mut self, values: &[f32]) {
        self.bounds.observe(values);
        match &mut self.values {
            Values::Absolute(histogram) => histogram.observe(values, BINS),
            Values::Signed(histogram) => histogram.observe(values, BINS),
        }
    }

    fn range(&self) -> Range {
        self.range_of(self.percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_are_cut() {
        let mut values: Vec<f32> = (0..100_000).map(|i| (i % 1000) as f32 / 1000.0).collect();
        values.push(50.0);
        let mut statistic = Percentile::new(99.99, true);
        statistic.observe(&values);
        assert!((0.9..1.1).contains(&statistic.range().high), "{:?}", statistic.range());
        assert_eq!(statistic.range().low, 0.0);
        let mut asymmetric = Percentile::new(99.0, false);
        asymmetric.observe(&values);
        assert!(asymmetric.range().high < 1.1);
    }
}
