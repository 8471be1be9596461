//! The percentile of a histogram. For symmetric schemes the definition is AMD Quark's; for asymmetric ones, where the
//! incumbent's range collapses to its lower end, each tail loses half of the share.

use super::registry::ObserverRow;
use super::{Grid, Needs, Observer, Seen};
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

/// The observer, with the share where it was given one.
#[derive(Clone, Copy, Debug)]
pub(super) struct PercentileObserver(Option<Percentile>);

impl Observer for PercentileObserver {
    fn spelling(&self) -> String {
        self.0.map_or_else(|| ROW.name.to_owned(), |percentile| format!("{}{percentile}", ROW.name))
    }

    fn needs(&self, _: &dyn Grid) -> Needs {
        Needs::HISTOGRAM
    }

    fn range(&self, seen: &Seen<'_>, grid: &dyn Grid) -> Range {
        let percentile = self.0.unwrap_or(Percentile::DEFAULT);
        match seen.all_values() {
            Some(values) => percentile.range(values, seen.range(), grid.is_symmetric()),
            None => seen.histogram().percentile(percentile, seen.range(), grid.is_symmetric()),
        }
    }
}

/// Bins of the histogram, as many as the incumbent's.
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
        write!(f, "{}", self.0 as f64 / PARTS)
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

    fn percentile(text: &str) -> Percentile {
        text.parse().unwrap()
    }

    #[test]
    fn an_outlier_is_cut_off_and_both_tails_of_asymmetric_data_are_kept() {
        let mut values: Vec<f32> = (1..1000).map(|i| i as f32 / 1000.0).collect();
        values.push(50.0);
        let full = Range { min: 0.001, max: 50.0 };
        let range = percentile("99.9").range(&values, full, true);
        assert!(range.max > 0.9 && range.max < 1.1, "{range:?}");
        let values: Vec<f32> = (0..2001).map(|i| i as f32 / 1000.0 - 0.5).collect();
        let range = percentile("99").range(&values, Range { min: -0.5, max: 1.5 }, false);
        assert!((range.min + 0.49).abs() < 2e-3 && (range.max - 1.49).abs() < 2e-3, "{range:?}");
    }

    #[test]
    fn zeros_alone_have_no_range() {
        let range = percentile("99").range(&[0.0; 8], Range { min: 0.0, max: 0.0 }, true);
        assert_eq!((range.min, range.max), (0.0, 0.0));
    }
}
