//! The threshold whose quantized distribution of magnitudes is closest to the values'.
//!
//! For every threshold `t` at a bin's upper edge: p is the histogram up to `t`, the values beyond it counted into its last bin; q
//! is the same bins merged into as many levels as there are codes for `[0, t]`, each level spread evenly over its non-empty
//! bins, and the last never empty. The threshold with the least `sum p ln(p / q)` is taken, of equals the largest. The bin at zero counts as its
//! neighbour does: zeros, of which a Relu makes half of all values, are exact at any threshold.
//! Source: NVIDIA, 8-bit inference with TensorRT, GTC 2017, and the calibrator of its pytorch-quantization.
//!
//! ONNX Runtime and Quark merge into 128 levels whatever the codes, and make as many bins, which leaves one window to choose:
//! all values. With more bins their definition cuts too much, since it has half of the levels for either sign.

use super::histogram::{AbsoluteHistogram, Histogram};
use super::method::{Seen, Statistic};
use super::min_max::MinMax;
use crate::element::Element;
use crate::quantization::Range;

/// Bins of the first sample, from zero to its largest magnitude.
const BINS: usize = 2048;
/// Thresholds tried, about: of a histogram that grew every so manieth is.
const THRESHOLDS: usize = 2048;

/// A growing histogram of magnitudes.
#[derive(Debug, Clone)]
pub struct Entropy {
    element: Element,
    symmetric: bool,
    values: AbsoluteHistogram,
    bounds: MinMax,
}

impl Entropy {
    /// For an element type, whose codes are the levels.
    pub fn new(element: Element, symmetric: bool) -> Self {
        Self { element, symmetric, values: AbsoluteHistogram::default(), bounds: MinMax::default() }
    }

    /// Codes for the magnitudes of one sign: all of them where the other sign neither occurs nor is held free.
    fn levels(&self) -> usize {
        let seen = self.bounds.range();
        let one_sided = !self.symmetric && (seen.low >= 0.0 || seen.high <= 0.0);
        let codes = self.element.full_range().map_or(256, |codes| codes.max.abs_diff(codes.min).saturating_add(1));
        let levels = if one_sided { codes } else { codes / 2 };
        usize::try_from(levels).unwrap_or(usize::MAX).max(1)
    }
}

impl Statistic for Entropy {
    fn observe(&mut self, seen: &Seen<'_>) {
        self.bounds.observe(seen);
        self.values.observe_from_zero(seen, BINS);
    }

    fn range(&self) -> Range {
        let seen = self.bounds.range();
        let histogram = &self.values.0;
        if histogram.total() == 0 {
            return seen;
        }
        let threshold = histogram.edges[best_threshold(histogram, self.levels())] as f32;
        let low = (-threshold).max(seen.low);
        Range { low, high: threshold.min(seen.high).max(low) }
    }
}

/// The number of bins below the best threshold.
fn best_threshold(histogram: &Histogram, levels: usize) -> usize {
    let bins = histogram.counts.len();
    let sums = Sums::new(&histogram.counts);
    let stride = bins.div_ceil(THRESHOLDS);
    // From the largest down: of equals the first is the largest.
    let tried = (0..).map(|i| bins.saturating_sub(i * stride)).take_while(|&bins| bins >= levels.min(sums.bins()));
    let scored = tried.map(|bins| (sums.divergence(bins, levels), bins));
    let best = scored.reduce(|best, next| if next.0 < best.0 { next } else { best });
    best.map_or(bins, |(_, bins)| bins)
}

/// Sums over the first bins, so that a level's share takes one subtraction.
struct Sums {
    counts: Vec<u64>,
    filled: Vec<u64>,
    /// `sum count ln count`.
    information: Vec<f64>,
}

impl Sums {
    fn new(counts: &[u64]) -> Self {
        let mut sums = Self { counts: vec![0], filled: vec![0], information: vec![0.0] };
        let (mut count, mut filled, mut information) = (0, 0, 0.0);
        for bin in 0..counts.len() {
            let here = if bin == 0 { counts.get(1).copied().unwrap_or(counts[0]) } else { counts[bin] };
            count += here;
            filled += u64::from(here > 0);
            information += times_log(here as f64);
            sums.counts.push(count);
            sums.filled.push(filled);
            sums.information.push(information);
        }
        sums
    }

    fn bins(&self) -> usize {
        self.counts.len() - 1
    }

    /// `sum p ln(p / q)` for the first bins, with p and q normed to 1.
    fn divergence(&self, bins: usize, levels: usize) -> f64 {
        let total = self.counts[self.bins()] as f64;
        let inside = self.counts[bins];
        let (last, beyond) = (inside - self.counts[bins - 1], total - inside as f64);
        if inside == 0 {
            return f64::INFINITY;
        }
        // An empty last bin has one value in q: p has there all that lies beyond, and would be infinitely far from none.
        let empty = last == 0 && beyond > 0.0;
        let own = self.information[bins] - times_log(last as f64) + times_log(last as f64 + beyond);
        // sum p ln p - sum p ln q, times the total, with q = mean of the level / values inside.
        let with_levels = self.with_levels(bins, levels.min(bins), if empty { 0.0 } else { beyond });
        (own - with_levels) / total - total.ln() + (inside as f64 + f64::from(u8::from(empty))).ln()
    }

    /// `sum p ln(mean of the level)`: within a level all q are the same.
    fn with_levels(&self, bins: usize, levels: usize, beyond: f64) -> f64 {
        let mut sum = 0.0;
        let mut start = 0;
        for level in 1..=levels {
            let end = (level * bins).div_ceil(levels);
            let count = self.counts[end] - self.counts[start];
            let filled = self.filled[end] - self.filled[start];
            let here = count as f64 + if level == levels { beyond } else { 0.0 };
            if count > 0 {
                sum += here * (count as f64 / filled as f64).ln();
            }
            start = end;
        }
        sum
    }
}

fn times_log(count: f64) -> f64 {
    if count > 0.0 { count * count.ln() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(values: &[f32], element: Element, symmetric: bool) -> Range {
        let mut statistic = Entropy::new(element, symmetric);
        statistic.observe(&Seen::new(values));
        statistic.range()
    }

    /// Values of a bell, the same whenever this runs.
    fn bell() -> Vec<f32> {
        let uniform = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        (0..40_000).map(|i| (0..6).map(|k| uniform(6 * i + k + 1)).sum()).collect()
    }

    #[test]
    fn a_lone_outlier_is_cut_and_dense_data_hardly() {
        let mut values = bell();
        let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        let dense = range(&values, Element::Int8, true);
        assert!(dense.high > 0.6 * largest && dense.high <= largest, "{dense:?} of {largest}");
        values.push(40.0);
        let with_outlier = range(&values, Element::Int8, true);
        assert!(with_outlier.high < 6.0 && with_outlier.low < 0.0, "{with_outlier:?}");
    }

    #[test]
    fn more_codes_cut_less_and_as_many_as_bins_nothing() {
        let values = bell();
        let highs = [Element::Int4, Element::Int8, Element::Int16].map(|e| range(&values, e, true).high);
        assert!(highs.is_sorted(), "{highs:?}");
        assert_eq!(highs[2], values.iter().fold(0f32, |m, v| m.max(*v)));
    }

    #[test]
    fn zeros_do_not_move_the_threshold() {
        let mut values: Vec<f32> = bell().iter().map(|v| v.abs()).collect();
        let without = range(&values, Element::UInt8, false);
        values.resize(values.len() * 4, 0.0);
        assert_eq!((range(&values, Element::UInt8, false).high, without.low > 0.0), (without.high, true));
    }

    /// The definition, bin by bin.
    fn divergence(counts: &[u64], bins: usize, levels: usize) -> f64 {
        let counts: Vec<f64> = [&counts[1..2], &counts[1..]].concat().iter().map(|&c| c as f64).collect();
        let mut p = counts[..bins].to_vec();
        p[bins - 1] += counts[bins..].iter().sum::<f64>();
        let mut q = vec![0.0; bins];
        for level in 0..levels {
            let inside: Vec<usize> = (0..bins).filter(|bin| bin * levels / bins == level).collect();
            let filled = inside.iter().filter(|&&bin| counts[bin] > 0.0).count() as f64;
            let sum: f64 = inside.iter().map(|&bin| counts[bin]).sum();
            inside.into_iter().filter(|&bin| counts[bin] > 0.0).for_each(|bin| q[bin] = sum / filled);
        }
        if q[bins - 1] == 0.0 && p[bins - 1] > 0.0 {
            q[bins - 1] = 1.0;
        }
        let (total, inside) = (p.iter().sum::<f64>(), q.iter().sum::<f64>());
        p.iter().zip(&q).filter(|(p, _)| **p > 0.0).map(|(p, q)| p / total * (p / total * inside / q).ln()).sum()
    }

    #[test]
    fn sums_give_what_the_definition_says() {
        let counts: Vec<u64> = (0..97u64).map(|i| (i * 7919 % 13).saturating_sub(3) * (200 - i)).collect();
        let sums = Sums::new(&counts);
        for (bins, levels) in [(97, 8), (64, 8), (61, 16), (16, 16), (40, 100)] {
            let (own, defined) = (sums.divergence(bins, levels), divergence(&counts, bins, levels.min(bins)));
            assert!((own - defined).abs() < 1e-9, "{bins} {levels}: {own} {defined}");
        }
    }
}
