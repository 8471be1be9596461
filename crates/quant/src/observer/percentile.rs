//! The percentile of a histogram. For symmetric schemes the definition is AMD Quark's; for asymmetric ones, where the
//! incumbent's range collapses to its lower end, each tail loses half of the share. Tensors of graphs have ONNX Runtime's
//! definition, which counts zeros too and takes the lower edges of bins.

use super::growing::{EqualBins, Growing, GrowingNeeds};
use super::registry::ObserverRow;
use super::{Grid, Needs, ObservedValues, Observer};
use kvant_numeric::kernel::Range;
use std::fmt;
use std::str::FromStr;

pub(super) const ROW: ObserverRow = ObserverRow {
    name: "percentile",
    aliases: &[],
    example: "percentile99.99",
    about: "the range without the largest magnitudes: 99.99 % of the values stay inside; any number, 99.999 without one",
    make: |settings| {
        let percentile = if settings.is_empty() { None } else { Some(settings.parse().ok()?) };
        Some(Box::new(PercentileObserver(percentile)))
    },
};

pub(super) const OF_MAGNITUDES: ObserverRow = ObserverRow {
    name: "magnitude-percentile",
    aliases: &[],
    example: "magnitude-percentile99.99",
    about: "for zero points too, the range without the largest magnitudes, where percentile cuts both ends: ONNX Runtime's default",
    make: |settings| {
        let percentile = if settings.is_empty() { Percentile::DEFAULT } else { settings.parse().ok()? };
        Some(Box::new(MagnitudePercentile(percentile)))
    },
};

/// The observer that counts magnitudes whatever the codes are.
#[derive(Clone, Copy, Debug)]
struct MagnitudePercentile(Percentile);

impl Observer for MagnitudePercentile {
    fn spelling(&self) -> String {
        format!("{}{}", OF_MAGNITUDES.name, self.0)
    }

    fn needs(&self, grid: &dyn Grid) -> Needs {
        needs_of(grid, true)
    }

    /// `[-t, t]`, never beyond the range of all values.
    fn range(&self, seen: &ObservedValues<'_>, _: &dyn Grid) -> Range {
        let (found, full) = (range_by(self.0, seen, true), seen.range());
        let min = found.min.max(full.min);
        Range { min, max: found.max.min(full.max).max(min) }
    }
}

/// The observer, with the share where it was given one.
#[derive(Clone, Copy, Debug)]
pub(super) struct PercentileObserver(Option<Percentile>);

impl PercentileObserver {
    pub(super) const DEFAULT: PercentileObserver = PercentileObserver(None);

    /// With a share, if one was given.
    pub(super) fn new(percentile: Option<Percentile>) -> PercentileObserver {
        PercentileObserver(percentile)
    }
}

impl Observer for PercentileObserver {
    fn spelling(&self) -> String {
        self.0.map_or_else(|| ROW.name.to_owned(), |percentile| format!("{}{percentile}", ROW.name))
    }

    fn needs(&self, grid: &dyn Grid) -> Needs {
        needs(grid)
    }

    fn range(&self, seen: &ObservedValues<'_>, grid: &dyn Grid) -> Range {
        range_of(self.0.unwrap_or(Percentile::DEFAULT), seen, grid)
    }
}

/// The source of percentiles.
pub(super) fn needs(grid: &dyn Grid) -> Needs {
    needs_of(grid, grid.is_symmetric())
}

fn needs_of(grid: &dyn Grid, symmetric: bool) -> Needs {
    match (grid.graph(), symmetric) {
        (None, _) => Needs::HISTOGRAM,
        (Some(_), true) => Needs::growing(GrowingNeeds { magnitudes: true, ..GrowingNeeds::NONE }),
        (Some(_), false) => Needs::growing(GrowingNeeds { centred: true, ..GrowingNeeds::NONE }),
    }
}

/// The range that holds a share of the values.
pub(super) fn range_of(percentile: Percentile, seen: &ObservedValues<'_>, grid: &dyn Grid) -> Range {
    range_by(percentile, seen, grid.is_symmetric())
}

fn range_by(percentile: Percentile, seen: &ObservedValues<'_>, symmetric: bool) -> Range {
    match (seen.growing_histograms(), seen.all_values()) {
        (Some(growing), _) => percentile.of_growing(growing, seen.range(), symmetric),
        (None, Some(values)) => percentile.range(values, seen.range(), symmetric),
        (None, None) => seen.histogram().percentile(percentile, seen.range(), symmetric),
    }
}

/// The histogram of a tensor of a graph that percentiles are found from.
pub(super) fn bins_of(growing: &Growing, symmetric: bool) -> Option<&EqualBins> {
    match symmetric {
        true => growing.magnitudes.as_ref().map(|histogram| &histogram.0),
        false => growing.centred.as_ref().map(|histogram| &histogram.histogram),
    }
}

/// Bins of the histogram, as in ONNX Runtime.
const BINS: usize = 4200;
/// The parts into which a percent is divided, so that a percentile is an exact, comparable number.
const PARTS: f64 = 1e8;
/// All elements: a hundred percent.
pub(super) const WHOLE: u64 = 10_000_000_000;

/// A percentile above 0 and at most 100, in parts of 10^-8 percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Percentile(u64);

impl Percentile {
    /// 99.999 %.
    pub const DEFAULT: Percentile = Percentile(9_999_900_000);
    /// Those that a layerwise percentile is chosen from: 99.99 %, 99.999 % and 99.99999 %.
    pub(super) const CANDIDATES: [Percentile; 3] =
        [Percentile(9_999_000_000), Percentile(9_999_900_000), Percentile(9_999_999_000)];

    /// The share in percent.
    fn percent(self) -> f64 {
        self.0 as f64 / PARTS
    }

    /// The range that holds the share by ONNX Runtime's definition, never beyond `full`, the range of all.
    ///
    /// Symmetric: `t` is the lower edge of the first bin up to which that share of the magnitudes is counted. Otherwise half of the rest
    /// is cut off on either side.
    fn of_growing(self, growing: &Growing, full: Range, symmetric: bool) -> Range {
        let Some(histogram) = bins_of(growing, symmetric).filter(|histogram| histogram.total() > 0) else {
            return full;
        };
        let edge = |share: f64| histogram.edges[histogram.quantile_edge(share)] as f32;
        let found = match symmetric {
            true => {
                let bound = edge(self.percent() / 100.0);
                Range { min: -bound, max: bound }
            }
            false => {
                let cut = (100.0 - self.percent()) / 200.0;
                Range { min: edge(cut), max: edge(1.0 - cut) }
            }
        };
        let min = found.min.max(full.min);
        Range { min, max: found.max.min(full.max).max(min) }
    }

    /// The share of elements inside, in parts of 10^-10.
    pub(super) fn share(self) -> u64 {
        self.0
    }

    /// The share below the upper end, or above the lower one, where each tail loses half of the rest.
    pub(super) fn share_below(self) -> u64 {
        WHOLE - (WHOLE - self.0) / 2
    }

    /// The range that holds this share of the elements that are not zero.
    fn range(self, values: &[f32], full: Range, symmetric: bool) -> Range {
        if symmetric { self.symmetric(values, full.abs_max()) } else { self.asymmetric(values, full) }
    }

    fn symmetric(self, values: &[f32], amax: f32) -> Range {
        let counts = histogram(values.iter().map(|v| v.abs()), Range { min: 0.0, max: amax });
        let bin = first_bin_reaching(&counts, self.share());
        let max = bin.map_or(0.0, |bin| edge(0.0, amax, bin));
        Range { min: -max, max }
    }

    fn asymmetric(self, values: &[f32], full: Range) -> Range {
        let counts = histogram(values.iter().copied(), full);
        let tail = (WHOLE - self.share()) / 2;
        let (low, high) = (first_bin_reaching(&counts, tail), first_bin_reaching(&counts, WHOLE - tail));
        Range {
            min: low.map_or(0.0, |bin| edge(full.min, full.max, bin)),
            max: high.map_or(0.0, |bin| edge(full.min, full.max, bin + 1)),
        }
    }
}

/// Counts of the non-zero values in equal bins; the last bin includes its upper edge.
fn histogram(values: impl Iterator<Item = f32>, range: Range) -> Vec<u64> {
    let mut counts = vec![0; BINS];
    let width = f64::from(range.max) - f64::from(range.min);
    for value in values.filter(|v| *v != 0.0) {
        let position = (f64::from(value) - f64::from(range.min)) / width * BINS as f64;
        counts[(position as usize).min(BINS - 1)] += 1;
    }
    counts
}

/// The first non-empty bin up to which `share` (of [`WHOLE`]) of the counts lie; `None` for an empty histogram.
fn first_bin_reaching(counts: &[u64], share: u64) -> Option<usize> {
    let total: u64 = counts.iter().sum();
    let needed = u128::from(share) * u128::from(total);
    let mut seen = 0;
    counts.iter().position(|count| {
        seen += count;
        *count > 0 && u128::from(seen) * u128::from(WHOLE) >= needed
    })
}

/// Edge `index` of the bins between `start` and `end`, computed in f32 from the nearer end, as `linspace` does.
fn edge(start: f32, end: f32, index: usize) -> f32 {
    let step = (end - start) / BINS as f32;
    if index < BINS.div_ceil(2) { start + step * index as f32 } else { end - step * (BINS - index) as f32 }
}

impl fmt::Display for Percentile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.percent())
    }
}

impl FromStr for Percentile {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let percent: f64 = text.parse().map_err(|_| ())?;
        if percent > 0.0 && percent <= 100.0 { Ok(Percentile((percent * PARTS).round() as u64)) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::SampleView;

    fn percentile(text: &str) -> Percentile {
        text.parse().unwrap()
    }

    #[test]
    fn percentile_cuts_an_outlier_and_keeps_asymmetric_tails() {
        let mut values: Vec<f32> = (1..1000).map(|i| i as f32 / 1000.0).collect();
        values.push(50.0);
        let full = Range { min: 0.001, max: 50.0 };
        let range = percentile("99.9").range(&values, full, true);
        assert!(range.max > 0.9 && range.max < 1.1, "{range:?}");
        let values: Vec<f32> = (0..2001).map(|i| i as f32 / 1000.0 - 0.5).collect();
        let range = percentile("99").range(&values, Range { min: -0.5, max: 1.5 }, false);
        assert!((range.min + 0.49).abs() < 2e-3 && (range.max - 1.49).abs() < 2e-3, "{range:?}");
    }

    /// Of a tensor of a graph, sample by sample.
    fn growing(samples: &[Vec<f32>], symmetric: bool) -> Growing {
        let needs = GrowingNeeds { magnitudes: symmetric, centred: !symmetric, ..GrowingNeeds::NONE };
        let mut growing = Growing::new(needs);
        samples.iter().for_each(|sample| growing.observe(&SampleView::new(sample)));
        growing
    }

    /// Numpy's own results: edges are f32, a histogram grows by steps of which the first is rounded to f32.
    #[test]
    fn graph_percentile_histograms_grow_like_quark() {
        let sample = |n: u32| -> Vec<f32> {
            let mixed = |i: u32| (i.wrapping_mul(2_654_435_761).wrapping_add(n * 97) >> 8) as f32 / 16_777_216.0 - 0.5;
            (0..768).map(|i| mixed(i) * (2.0 + n as f32)).collect()
        };
        let samples: Vec<Vec<f32>> = (0..4).map(sample).collect();
        let full = samples.iter().flatten().fold(Range::EMPTY, |range, v| range.join(Range { min: *v, max: *v }));
        let growing = growing(&samples, true);
        let histogram = bins_of(&growing, true).unwrap();
        let (bins, last) = (histogram.counts.len(), histogram.edges[histogram.counts.len()] as f32);
        assert_eq!((bins, last), (5123, 2.500_487_3));
        assert_eq!(percentile("99.999").of_growing(&growing, full, true).max, 2.494_065_3);
    }

    #[test]
    fn graph_percentile_cuts_outliers() {
        let mut values: Vec<f32> = (0..100_000).map(|i| (i % 1000) as f32 / 1000.0).collect();
        values.push(50.0);
        let full = Range { min: 0.0, max: 50.0 };
        let range = percentile("99.99").of_growing(&growing(&[values.clone()], true), full, true);
        assert!((0.9..1.1).contains(&range.max) && range.min == 0.0, "{range:?}");
        assert!(percentile("99").of_growing(&growing(&[values], false), full, false).max < 1.1);
    }

    #[test]
    fn all_zeros_have_an_empty_range() {
        let range = percentile("99").range(&[0.0; 8], Range { min: 0.0, max: 0.0 }, true);
        assert_eq!((range.min, range.max), (0.0, 0.0));
    }
}
