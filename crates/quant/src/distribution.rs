//! The distribution of values, for people to look at: gathered batch by batch in bounded memory, shown in bins of equal width. Not the
//! histograms from which observers find ranges: see [`crate::observer`].
//!
//! Values are counted by sign, exponent and four mantissa bits. These bins do not depend on the data, so that counts of parts add up to those of
//! the whole in any order: results are the same for any number of threads, and for resumed runs.

use kvant_numeric::kernel::{Range, group_ranges};
use kvant_numeric::simd::Isa;
use serde::{Deserialize, Serialize};

/// Bits of an `f32` that bins ignore.
const DROPPED: u32 = 19;
/// Bins of both signs.
const BINS: usize = 1 << (32 - DROPPED);
/// The bins of one sign whose values are finite.
const FINITE: usize = 255 << (23 - DROPPED);

/// Counts of values, with the least and the greatest of them. Values that are NaN or infinite are left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Distribution {
    counts: Box<[u64; BINS]>,
    range: Range,
}

/// The stored form: the bins that occur with their counts, and the ends as bits. There are no ends without values.
#[derive(Serialize, Deserialize)]
struct Stored {
    bins: Vec<(usize, u64)>,
    ends: Option<[u32; 2]>,
}

impl From<Distribution> for Stored {
    fn from(distribution: Distribution) -> Stored {
        let bins = distribution.counts.iter().copied().enumerate().filter(|(_, count)| *count > 0).collect();
        Stored { bins, ends: distribution.range().map(|range| [range.min.to_bits(), range.max.to_bits()]) }
    }
}

impl TryFrom<Stored> for Distribution {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Distribution, &'static str> {
        let mut distribution = Distribution::default();
        for (bin, count) in stored.bins {
            *distribution.counts.get_mut(bin).ok_or("no such bin")? = count;
        }
        if let Some([min, max]) = stored.ends.map(|ends| ends.map(f32::from_bits)) {
            let is_range = min.is_finite() && max.is_finite() && min <= max;
            distribution.range = if is_range { Range { min, max } } else { return Err("no range") };
        }
        Ok(distribution)
    }
}

impl Default for Distribution {
    fn default() -> Distribution {
        Distribution { counts: Box::new([0; BINS]), range: Range::EMPTY }
    }
}

/// Values of a bin, as far as they are in the range of all. Both ends are zero in the bins of zeros and subnormal numbers.
#[derive(Clone, Copy)]
struct Span {
    low: f64,
    high: f64,
    count: u64,
}

impl Span {
    /// The values of the span below a number, if they are spread evenly.
    fn below(&self, number: f64) -> f64 {
        match (number > self.low, number < self.high) {
            (false, _) => 0.0,
            (true, true) => self.count as f64 * (number - self.low) / (self.high - self.low),
            (true, false) => self.count as f64,
        }
    }
}

impl Distribution {
    /// Takes in a batch of values.
    pub fn update(&mut self, isa: Isa, values: &[f32]) {
        if values.is_empty() {
            return;
        }
        for value in values {
            self.counts[(value.to_bits() >> DROPPED) as usize] += 1;
        }
        let mut whole = [Range::EMPTY];
        group_ranges(isa, values, values.len(), &mut whole);
        let [mut range] = whole;
        if !(range.min.is_finite() && range.max.is_finite()) {
            let finite = values.iter().filter(|value| value.is_finite());
            range = finite.fold(Range::EMPTY, |range, value| range.join(Range { min: *value, max: *value }));
        }
        self.range = self.range.join(range);
    }

    /// The number of finite values.
    pub fn values(&self) -> u64 {
        self.counts.chunks(BINS / 2).flat_map(|sign| &sign[..FINITE]).sum()
    }

    /// The least and the greatest finite value; `None` before the first.
    pub fn range(&self) -> Option<Range> {
        (self.range.min <= self.range.max).then_some(self.range)
    }

    /// The bins with values, from the least to the greatest.
    fn spans(&self) -> Vec<Span> {
        let (min, max) = (f64::from(self.range.min), f64::from(self.range.max));
        let end = |bin: usize| match bin {
            0 => 0.0,
            FINITE => f64::from(f32::MAX),
            bin => f64::from(f32::from_bits((bin as u32) << DROPPED)),
        };
        let (positive, negative) = self.counts.split_at(BINS / 2);
        let magnitudes = |bin: usize| if bin == 0 { (0.0, 0.0) } else { (end(bin), end(bin + 1)) };
        let span = |low: f64, high: f64, count: u64| Span { low: low.max(min), high: high.min(max), count };
        let below = (0..FINITE).rev().map(|bin| (magnitudes(bin), negative[bin]));
        let above = (0..FINITE).map(|bin| (magnitudes(bin), positive[bin]));
        let below = below.filter(|(_, count)| *count > 0).map(|((low, high), count)| span(-high, -low, count));
        below.chain(above.filter(|(_, count)| *count > 0).map(|((low, high), count)| span(low, high, count))).collect()
    }

    /// The counts of values in `bins` of equal width over a range. Values of a bin of this distribution, which is at most a sixteenth of its
    /// magnitude wide, count as spread over it evenly. Where the range has all values, counts add up to [`values`](Self::values).
    pub fn counts(&self, within: Range, bins: usize) -> Vec<u64> {
        let (spans, low) = (self.spans(), f64::from(within.min));
        let width = (f64::from(within.max) - low) / bins.max(1) as f64;
        // The greatest value belongs to the last bin.
        let is_last = |edge: usize| edge == bins && self.range.max <= within.max;
        let below = |edge: usize| match is_last(edge) {
            true => self.values(),
            false => spans.iter().map(|span| span.below(low + width * edge as f64)).sum::<f64>().round() as u64,
        };
        let edges: Vec<u64> = (0..=bins).map(below).collect();
        edges.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect()
    }

    /// The share of values outside of a range; zero without values. It is exactly zero where the range has all of them, and otherwise as exact as
    /// the bins at its ends.
    pub fn share_outside(&self, range: Range) -> f64 {
        let (min, max) = (f64::from(range.min), f64::from(range.max));
        let outside = |span: &Span| match span.low < span.high {
            true => span.below(min) + span.count as f64 - span.below(max),
            false if span.low < min || span.low > max => span.count as f64,
            false => 0.0,
        };
        self.spans().iter().map(outside).sum::<f64>() / self.values().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distribution(values: &[f32]) -> Distribution {
        let mut distribution = Distribution::default();
        distribution.update(Isa::best(), values);
        distribution
    }

    fn wave(count: u32) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * 0.37).sin() * (i % 97) as f32).collect()
    }

    #[test]
    fn counts_add_up_to_the_values() {
        let values = wave(10_000);
        let found = distribution(&values);
        let range = found.range().unwrap();
        for bins in [1, 7, 64] {
            assert_eq!(found.counts(range, bins).iter().sum::<u64>(), 10_000, "{bins}");
        }
        let wider = Range { min: -200.0, max: 400.0 };
        assert_eq!(found.counts(wider, 64).iter().sum::<u64>(), 10_000);
        assert_eq!((found.values(), found.share_outside(wider)), (10_000, 0.0));
    }

    #[test]
    fn counts_are_those_of_the_values_in_each_bin_about() {
        let values: Vec<f32> = (0..20_000).map(|i| (i as f32 - 10_000.0) / 100.0).collect();
        let counts = distribution(&values).counts(Range { min: -100.0, max: 100.0 }, 40);
        assert!(counts.iter().all(|count| count.abs_diff(500) <= 25), "{counts:?}");
    }

    #[test]
    fn zeros_and_single_values_are_in_one_bin() {
        let found = distribution(&[0.0, -0.0, 1e-42, 3.0, 3.0, -1.0]);
        assert_eq!(found.counts(Range { min: -1.0, max: 3.0 }, 4), [1, 3, 0, 2]);
        assert_eq!(distribution(&[448.0; 5]).counts(Range { min: 0.0, max: 448.0 }, 3), [0, 0, 5]);
        assert_eq!(distribution(&[0.0; 5]).counts(Range { min: 0.0, max: 0.0 }, 3).iter().sum::<u64>(), 5);
        assert_eq!(Distribution::default().counts(Range { min: -1.0, max: 1.0 }, 2), [0, 0]);
    }

    #[test]
    fn share_outside_is_that_of_the_tails() {
        let values: Vec<f32> = (0..1000).map(|i| i as f32 / 1000.0).chain([50.0]).collect();
        let found = distribution(&values);
        assert_eq!(found.share_outside(found.range().unwrap()), 0.0);
        let share = found.share_outside(Range { min: -1.0, max: 0.9 });
        assert!((share - 0.1).abs() < 0.002, "{share}");
        assert!((found.share_outside(Range { min: 0.0, max: 2.0 }) - 1.0 / 1001.0).abs() < 1e-12);
        assert_eq!(Distribution::default().share_outside(Range { min: 0.0, max: 1.0 }), 0.0);
        assert_eq!(distribution(&[0.0, 2.0]).share_outside(Range { min: 1.0, max: 3.0 }), 0.5);
    }

    #[test]
    fn values_that_are_not_finite_are_left_out() {
        let found = distribution(&[f32::NAN, f32::INFINITY, 1.0, f32::NEG_INFINITY, -2.0, f32::MAX]);
        assert_eq!((found.values(), found.range()), (3, Some(Range { min: -2.0, max: f32::MAX })));
        assert_eq!(distribution(&[f32::NAN]).range(), None);
    }

    #[test]
    fn resumed_distributions_equal_uninterrupted_ones() {
        let values = wave(3000);
        let first = serde_json::to_string(&distribution(&values[..1000])).unwrap();
        let mut resumed: Distribution = serde_json::from_str(&first).unwrap();
        resumed.update(Isa::best(), &values[1000..]);
        assert_eq!(resumed, distribution(&values));
        let empty = serde_json::to_string(&Distribution::default()).unwrap();
        assert_eq!(serde_json::from_str::<Distribution>(&empty).unwrap(), Distribution::default());
        for hostile in [r#"{"bins": [[8192, 1]], "ends": null}"#, r#"{"bins": [], "ends": [2143289344, 0]}"#, "[]"] {
            assert!(serde_json::from_str::<Distribution>(hostile).is_err(), "{hostile}");
        }
    }
}
