//! The threshold whose quantized distribution of magnitudes is closest to the values'.
//!
//! For every threshold `t` at a bin's upper edge: p is the histogram up to `t`, the values beyond it counted into its last bin; q
//! is the same bins merged into as many levels as there are codes for `[0, t]`, each level spread evenly over its non-empty
//! bins, and the last never empty. The threshold with the least `sum p ln(p / q)` is taken, of equals the largest. The bin at zero counts like its
//! neighbour: zeros, which a Relu makes of half of all values, are exact at any threshold.
//! Source: NVIDIA, 8-bit inference with TensorRT, GTC 2017, and the calibrator of its pytorch-quantization.
//!
//! ONNX Runtime and Quark merge into 128 levels for all dtypes, and make as many bins, which leaves one window to choose:
//! all values. With more bins their definition cuts too much, since it has half of the levels for either sign.

//!
//! For activations of checkpoints the bins of magnitudes are those of [`Histogram`](super::Histogram), distributed evenly over
//! bins of equal width.

use super::growing::{BINS, GrowingNeeds};
use super::registry::{ObserverRow, plain};
use super::{Grid, Needs, ObservedTensor, ObservedValues, Observer, SharedBy};
use kvant_numeric::DType;
use kvant_numeric::kernel::Range;

pub(super) const ROW: ObserverRow = ObserverRow {
    name: "entropy",
    aliases: &["kl"],
    example: "entropy",
    about: "the range whose quantized histogram has the least Kullback-Leibler divergence from the values'; integers only",
    make: |settings| plain(settings, Entropy),
};

/// Thresholds tried, about: of a histogram that grew every so manieth is.
const THRESHOLDS: usize = 2048;

/// The observer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entropy;

impl Observer for Entropy {
    fn spelling(&self) -> String {
        ROW.name.to_owned()
    }

    fn needs(&self, grid: &dyn Grid) -> Needs {
        match grid.graph() {
            Some(_) => Needs::growing(GrowingNeeds { from_zero: true, ..GrowingNeeds::NONE }),
            None => Needs::HISTOGRAM,
        }
    }

    fn refusal(&self, tensor: &ObservedTensor) -> Option<&'static str> {
        match tensor.dtype {
            DType::Int(_) if tensor.is_weight && tensor.shared_by != SharedBy::Tensor => {
                Some("a channel or a group has too few values for a histogram of 2048 bins: use `mse`")
            }
            DType::Int(_) => None,
            _ => Some("it takes levels to be evenly spaced, as integers are: use `mse` or a percentile"),
        }
    }

    fn range(&self, seen: &ObservedValues<'_>, grid: &dyn Grid) -> Range {
        let full = seen.range();
        let levels = levels(full, grid);
        let threshold = match seen.growing_histograms() {
            Some(growing) => growing.from_zero.as_ref().map(|histogram| &histogram.0).and_then(|histogram| {
                let is_empty = histogram.total() == 0;
                (!is_empty).then(|| histogram.edges[best_threshold(&histogram.counts, levels)] as f32)
            }),
            None => {
                let counts = seen.histogram().of_equal_widths(BINS, full.abs_max());
                let is_empty = counts.iter().all(|count| *count == 0);
                let edge = |bin: usize| full.abs_max() * (bin as f32 / BINS as f32);
                (!is_empty).then(|| edge(best_threshold(&counts, levels)))
            }
        };
        let Some(threshold) = threshold else { return full };
        let min = (-threshold).max(full.min);
        Range { min, max: threshold.min(full.max).max(min) }
    }
}

/// Codes for the magnitudes of one sign: all of them where the other sign neither occurs nor is held free.
fn levels(seen: Range, grid: &dyn Grid) -> usize {
    let one_sided = !grid.is_symmetric() && (seen.min >= 0.0 || seen.max <= 0.0);
    let codes = match grid.dtype() {
        Some(DType::Int(int)) => int.steps() + 1,
        _ => 256,
    };
    let levels = if one_sided { codes } else { codes / 2 };
    usize::try_from(levels).unwrap_or(usize::MAX).max(1)
}

/// The number of bins below the best threshold.
fn best_threshold(counts: &[u64], levels: usize) -> usize {
    let bins = counts.len();
    let sums = Sums::new(counts);
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
    use crate::graph_grid::{GraphGrid, ScaleKind};
    use crate::observer::{GraphStatistic, SampleView};

    /// The range of a tensor of a graph.
    fn range(values: &[f32], dtype: &str, symmetric: bool) -> Range {
        let grid = GraphGrid { dtype: Some(dtype.parse().unwrap()), symmetric, scale: ScaleKind::Float };
        let mut statistic = GraphStatistic::new("entropy".parse().unwrap(), grid);
        statistic.observe(&SampleView::new(values));
        statistic.range()
    }

    /// Values of a bell, the same whenever this runs.
    fn bell() -> Vec<f32> {
        let uniform = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        (0..40_000).map(|i| (0..6).map(|k| uniform(6 * i + k + 1)).sum()).collect()
    }

    #[test]
    fn entropy_cuts_a_lone_outlier_and_barely_cuts_dense_data() {
        let mut values = bell();
        let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        let dense = range(&values, "int8", true);
        assert!(dense.max > 0.6 * largest && dense.max <= largest, "{dense:?} of {largest}");
        values.push(40.0);
        let with_outlier = range(&values, "int8", true);
        assert!(with_outlier.max < 6.0 && with_outlier.min < 0.0, "{with_outlier:?}");
    }

    #[test]
    fn entropy_cuts_less_with_more_codes() {
        let values = bell();
        let highs = ["int4", "int8", "int16"].map(|e| range(&values, e, true).max);
        assert!(highs.is_sorted(), "{highs:?}");
        assert_eq!(highs[2], values.iter().fold(0f32, |m, v| m.max(*v)));
    }

    #[test]
    fn zeros_do_not_move_the_entropy_threshold() {
        let mut values: Vec<f32> = bell().iter().map(|v| v.abs()).collect();
        let without = range(&values, "uint8", false);
        values.resize(values.len() * 4, 0.0);
        assert_eq!((range(&values, "uint8", false).max, without.min > 0.0), (without.max, true));
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
    fn fast_divergence_matches_the_definition() {
        let counts: Vec<u64> = (0..97u64).map(|i| (i * 7919 % 13).saturating_sub(3) * (200 - i)).collect();
        let sums = Sums::new(&counts);
        for (bins, levels) in [(97, 8), (64, 8), (61, 16), (16, 16), (40, 100)] {
            let (own, defined) = (sums.divergence(bins, levels), divergence(&counts, bins, levels.min(bins)));
            assert!((own - defined).abs() < 1e-9, "{bins} {levels}: {own} {defined}");
        }
    }
}
