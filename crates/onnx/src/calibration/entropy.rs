//! The range whose quantized distribution is closest to the values'.
//!
//! For every window of bins about zero: the outliers are counted into its edge bins (p), the window is merged into 128 bins and
//! spread over its non-empty bins again (q), both are smoothed, and the window with the least `sum p log(p / q)` is taken.
//! Source: NVIDIA, 8-bit inference with TensorRT, GTC 2017; the details are those of ONNX Runtime.

use super::histogram::{CentredHistogram, Histogram};
use super::method::Statistic;
use super::min_max::MinMax;
use crate::quantization::Range;

/// Bins of the first sample. The incumbents take 128, as many as quantized bins, which leaves a single window to choose.
const BINS: usize = 2048;
/// Bins a window is merged into.
const QUANTIZED: usize = 128;
/// What an empty bin is smoothed to.
const EPSILON: f64 = 1e-4;

/// A growing histogram about zero.
#[derive(Debug, Clone, Default)]
pub struct Entropy {
    values: CentredHistogram,
    bounds: MinMax,
}

impl Statistic for Entropy {
    fn observe(&mut self, values: &[f32]) {
        self.bounds.observe(values);
        self.values.observe(values, BINS);
    }

    fn range(&self) -> Range {
        let seen = self.bounds.range();
        let histogram = &self.values.histogram;
        if histogram.total() == 0 {
            return seen;
        }
        let (start, end) = best_window(histogram);
        let low = (histogram.edges[start] as f32).max(seen.low);
        Range { low, high: (histogram.edges[end] as f32).min(seen.high).max(low) }
    }
}

/// The bins from `start` up to `end` with the least divergence; of equals the smallest window.
fn best_window(histogram: &Histogram) -> (usize, usize) {
    let bins = histogram.counts.len();
    let zero = bins / 2;
    let mut sums = vec![0u64];
    sums.extend(histogram.counts.iter().scan(0, |sum, &count| {
        *sum += count;
        Some(*sum)
    }));
    let windows = (QUANTIZED / 2..=zero).map(|half| (zero - half, (zero + half + 1).min(bins)));
    let scored = windows.map(|(start, end)| (divergence(&histogram.counts, &sums, start, end), (start, end)));
    let best = scored.reduce(|best, next| if next.0 < best.0 { next } else { best });
    best.map_or((0, bins), |(_, window)| window)
}

/// The divergence of a window; infinite where it holds nothing. `sums[i]` is the number of values below bin i.
fn divergence(counts: &[u64], sums: &[u64], start: usize, end: usize) -> f64 {
    let window = &counts[start..end];
    let mut p = window.to_vec();
    p[0] += sums[start];
    p[window.len() - 1] += sums[counts.len()] - sums[end];
    let merged = window.len() / QUANTIZED;
    let mut q = vec![0u64; window.len()];
    for bin in 0..QUANTIZED {
        let (from, to) = (bin * merged, (bin + 1) * merged);
        let until = if bin + 1 == QUANTIZED { window.len() } else { to };
        let total = sums[start + until] - sums[start + from];
        let filled = p[from..to].iter().filter(|&&count| count != 0).count() as u64;
        if let Some(each) = total.checked_div(filled) {
            q[from..to].fill(each);
        }
    }
    match (smoothed(&p), smoothed(&q)) {
        (Some(p), Some(q)) => relative_entropy(&p, &q),
        _ => f64::INFINITY,
    }
}

/// Takes a little from the bins that have something for those that have nothing. `None` if none has.
fn smoothed(counts: &[u64]) -> Option<Vec<f64>> {
    let empty = counts.iter().filter(|&&count| count == 0).count();
    let filled = counts.len() - empty;
    let taken = (filled > 0).then(|| EPSILON * empty as f64 / filled as f64).filter(|&taken| taken < 1.0)?;
    let value = |&count: &u64| if count == 0 { EPSILON } else { count as f64 - taken };
    Some(counts.iter().map(value).collect())
}

fn relative_entropy(p: &[f64], q: &[f64]) -> f64 {
    let (p_sum, q_sum) = (p.iter().sum::<f64>(), q.iter().sum::<f64>());
    let part = |(p, q): (&f64, &f64)| (p / p_sum) * ((p / p_sum) / (q / q_sum)).ln();
    p.iter().zip(q).map(part).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_outlier_is_cut_and_dense_data_are_not() {
        let bell = |i: i32| (f64::from(i) / 20_000.0 * 3.1).sin() as f32 * ((i * 7919) % 1000) as f32 / 1000.0;
        let mut values: Vec<f32> = (0..20_000).map(bell).collect();
        let mut dense = Entropy::default();
        dense.observe(&values);
        assert!(dense.range().high > 0.7, "{:?}", dense.range());
        values.push(40.0);
        let mut with_outlier = Entropy::default();
        with_outlier.observe(&values);
        assert!(with_outlier.range().high < 10.0, "{:?}", with_outlier.range());
    }

    #[test]
    fn equal_distributions_do_not_diverge() {
        assert_eq!(relative_entropy(&[1.0, 3.0], &[2.0, 6.0]), 0.0);
        assert!(smoothed(&[0, 0]).is_none());
    }
}
