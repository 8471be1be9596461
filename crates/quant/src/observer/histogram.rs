//! A histogram of values that grows batch by batch in bounded memory. Not the ranges that follow from it.
//!
//! Bins are those floats that have eight mantissa bits: every value counts for the nearest of them. Bins do not depend on
//! the data, so that counts of parts add up to those of the whole in any order, and values of bfloat16 and of fp8 are
//! counted exactly. Quark's bins are those of the first batch, stretched over every later one.

use super::Percentile;
use super::percentile::WHOLE;
use kvant_numeric::kernel::Range;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Mantissa bits of `f32` that bins ignore.
const DROPPED: u32 = 15;
/// Bins of one sign and exponent.
const BINS: usize = 1 << (23 - DROPPED);
/// Signs and exponents.
const OCTAVES: usize = 1 << 9;

/// Counts of the values that are not zero, NaN or infinite, in bins of 2^-8 of their magnitude.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Histogram {
    /// By sign and exponent; those that do not occur take no memory.
    octaves: Vec<Option<Box<[u64; BINS]>>>,
}

/// The stored form of a histogram: the octaves that occur.
#[derive(Serialize, Deserialize)]
struct Stored(BTreeMap<usize, Vec<u64>>);

impl From<Histogram> for Stored {
    fn from(histogram: Histogram) -> Stored {
        let octaves = histogram.octaves.into_iter().enumerate();
        Stored(octaves.filter_map(|(octave, counts)| Some((octave, counts?.to_vec()))).collect())
    }
}

impl TryFrom<Stored> for Histogram {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Histogram, &'static str> {
        let mut histogram = Histogram::new();
        for (octave, counts) in stored.0 {
            let place = histogram.octaves.get_mut(octave).ok_or("no such octave")?;
            let counts: Box<[u64; BINS]> = counts.try_into().map_err(|_| "an octave of another length")?;
            *place = Some(counts);
        }
        Ok(histogram)
    }
}

/// A bin with its count: the values between `low` and `high`, nearest to `center`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// The value for which the bin counts.
    pub center: f32,
    /// Its lower end.
    pub low: f32,
    /// Its upper end.
    pub high: f32,
    /// Values in it.
    pub count: u64,
}

impl Bin {
    /// The bin of that number.
    fn new(number: usize, count: u64) -> Bin {
        let half = 1 << (DROPPED - 1);
        let bits = (number as u32) << DROPPED;
        // No values are counted around zero.
        let (inner, outer) = (finite(bits.saturating_sub(half)), finite(bits + half));
        let (low, high) = if inner.is_sign_negative() { (outer, inner) } else { (inner, outer) };
        Bin { center: finite(bits), low, high, count }
    }

    /// The same of magnitudes.
    fn magnitude(self) -> Bin {
        let (low, high) = if self.center < 0.0 { (-self.high, -self.low) } else { (self.low, self.high) };
        Bin { center: self.center.abs(), low, high, ..self }
    }
}

fn finite(bits: u32) -> f32 {
    let value = f32::from_bits(bits);
    if value.is_finite() { value } else { f32::MAX.copysign(value) }
}

impl Histogram {
    pub(crate) fn new() -> Histogram {
        Histogram { octaves: vec![None; OCTAVES] }
    }

    /// Counts finite values.
    pub(crate) fn update(&mut self, values: &[f32]) {
        for value in values.iter().filter(|v| **v != 0.0 && v.is_finite()) {
            let bin = ((value.to_bits() + (1 << (DROPPED - 1))) >> DROPPED) as usize;
            let counts = self.octaves[bin / BINS].get_or_insert_with(|| Box::new([0; BINS]));
            counts[bin % BINS] += 1;
        }
    }

    pub(super) fn merge(&mut self, other: &Histogram) {
        for (own, other) in self.octaves.iter_mut().zip(&other.octaves) {
            let Some(other) = other else { continue };
            let own = own.get_or_insert_with(|| Box::new([0; BINS]));
            own.iter_mut().zip(other.iter()).for_each(|(own, other)| *own = own.saturating_add(*other));
        }
    }

    /// The bins with something in them, from the least to the greatest.
    pub fn bins(&self) -> impl DoubleEndedIterator<Item = Bin> + '_ {
        let (positive, negative) = (0..OCTAVES / 2, OCTAVES / 2..OCTAVES);
        let numbers = |octaves: std::ops::Range<usize>| octaves.start * BINS..octaves.end * BINS;
        let occurring = |number: usize| {
            let count = self.octaves[number / BINS].as_ref()?[number % BINS];
            (count > 0).then(|| Bin::new(number, count))
        };
        numbers(negative).rev().chain(numbers(positive)).filter_map(occurring)
    }

    /// The range that holds this share of the values that are not zero, within `full`, the range of all: of symmetric
    /// schemes by magnitude, otherwise each tail loses half of the rest.
    pub fn percentile(&self, percentile: Percentile, full: Range, symmetric: bool) -> Range {
        if symmetric {
            let mut bins: Vec<Bin> = self.bins().map(Bin::magnitude).collect();
            bins.sort_by(|a, b| a.center.total_cmp(&b.center));
            let amax = full.abs_max();
            let max = reaching(bins.iter().copied(), percentile.share()).map_or(0.0, |bin| bin.high.min(amax));
            return Range { min: -max, max };
        }
        let bins: Vec<Bin> = self.bins().collect();
        let (above, below) = (bins.iter().copied(), bins.iter().rev().copied());
        let max = reaching(above, percentile.share_below()).map_or(0.0, |bin| bin.high.min(full.max));
        let min = reaching(below, percentile.share_below()).map_or(0.0, |bin| bin.low.max(full.min));
        Range { min, max }
    }

    /// The counts of magnitudes in `number` bins of equal width from zero to `largest`. A bin that spans several of them is shared
    /// out by its width there.
    pub(super) fn of_equal_widths(&self, number: usize, largest: f32) -> Vec<u64> {
        let width = f64::from(largest) / number as f64;
        let mut counts = vec![0; number];
        for bin in self.bins().map(Bin::magnitude) {
            let (low, high) = (f64::from(bin.low) / width, f64::from(bin.high.min(largest)) / width);
            let first = (low as usize).min(number - 1);
            let end = (high.ceil() as usize).clamp(first + 1, number);
            let mut given = 0;
            for (edge, count) in (first + 1..=end).zip(&mut counts[first..end]) {
                let share = if edge == end { 1.0 } else { (edge as f64 - low) / (high - low) };
                let reached = if edge == end { bin.count } else { (bin.count as f64 * share).round() as u64 };
                *count += reached - given;
                given = reached;
            }
        }
        counts
    }
}

/// The first bin up to which this share of the counts lie.
fn reaching(mut bins: impl Iterator<Item = Bin> + Clone, share: u64) -> Option<Bin> {
    let total: u128 = bins.clone().map(|bin| u128::from(bin.count)).sum();
    let mut seen = 0;
    bins.find(|bin| {
        seen += u128::from(bin.count);
        seen * u128::from(WHOLE) >= u128::from(share) * total
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(values: &[f32]) -> Histogram {
        let mut histogram = Histogram::new();
        histogram.update(values);
        histogram
    }

    fn percentile(values: &[f32], share: &str, symmetric: bool) -> Range {
        let each = values.iter().map(|v| Range { min: *v, max: *v });
        let full = each.fold(Range::EMPTY, Range::join);
        histogram(values).percentile(share.parse().unwrap(), full, symmetric)
    }

    #[test]
    fn histogram_bins_are_ordered_and_contain_their_values() {
        let values =
            [0.0, -0.0, 1.0, -1.0, 3e38, f32::MAX, f32::MIN, 1e-40, -2.5e-7, 1.001, 1.0039, f32::NAN, f32::INFINITY];
        let bins: Vec<Bin> = histogram(&values).bins().collect();
        assert!(bins.windows(2).all(|pair| pair[0].center < pair[1].center));
        assert_eq!(bins.iter().map(|bin| bin.count).sum::<u64>(), 9);
        for value in values.iter().filter(|v| **v != 0.0 && v.is_finite()) {
            assert!(bins.iter().any(|bin| bin.low <= *value && *value <= bin.high), "{value:e}");
        }
    }

    #[test]
    fn eight_bit_values_have_exact_bins() {
        for value in [448.0, -0.0625, 1.9921875, 3.0] {
            assert_eq!(histogram(&[value]).bins().map(|bin| bin.center).collect::<Vec<_>>(), [value]);
        }
    }

    #[test]
    fn percentile_cuts_outliers_on_their_side() {
        let mut values: Vec<f32> = (1..1000).map(|i| i as f32 / 1000.0).collect();
        values.push(50.0);
        let range = percentile(&values, "99.9", true);
        assert!(range.max > 0.99 && range.max < 1.01 && range.min == -range.max, "{range:?}");
        let range = percentile(&values, "99.8", false);
        assert!(range.max > 0.99 && range.max < 1.01 && range.min < 0.0025, "{range:?}");
        let negative: Vec<f32> = values.iter().map(|v| -v).collect();
        let range = percentile(&negative, "99.8", false);
        assert!(range.min < -0.99 && range.min > -1.01 && range.max > -0.0025, "{range:?}");
    }

    #[test]
    fn percentile_100_is_the_full_range() {
        let range = percentile(&[0.3, -7.7, 1.1], "100", false);
        assert_eq!((range.min, range.max), (-7.7, 1.1));
        assert_eq!(percentile(&[0.3, -7.7, 1.1], "99.99999999", true).max, 7.7);
        assert_eq!(percentile(&[0.0], "99", true).max, 0.0);
    }

    #[test]
    fn equal_width_bins_keep_values_in_place() {
        let values: Vec<f32> = (1..=10_000).map(|i| if i % 2 == 0 { i as f32 } else { -(i as f32) } / 100.0).collect();
        let counts = histogram(&values).of_equal_widths(50, 100.0);
        assert_eq!(counts.iter().sum::<u64>(), 10_000);
        assert!(counts.iter().all(|count| count.abs_diff(200) <= 30), "{counts:?}");
        assert_eq!(histogram(&[4.0, 1.0, -1.0, 1e-30]).of_equal_widths(4, 4.0), [1, 2, 0, 1]);
    }

    #[test]
    fn histograms_merge_and_round_trip() {
        let values: Vec<f32> = (0..3000).map(|i| ((i as f32) * 0.7).sin() * (i as f32)).collect();
        let mut merged = histogram(&values[1000..]);
        merged.merge(&histogram(&values[..1000]));
        assert_eq!(merged, histogram(&values));
        let text = serde_json::to_string(&merged).unwrap();
        assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), merged);
        for hostile in [r#"{"512": []}"#, r#"{"3": [1]}"#, "[]"] {
            assert!(serde_json::from_str::<Histogram>(hostile).is_err(), "{hostile}");
        }
    }
}
