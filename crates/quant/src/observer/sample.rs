//! A sample of the values, with their counts, that does not depend on how the data were split into parts.
//!
//! Of all distinct values the sample holds those with the least hashes. A value that stays was never left out, so its count
//! is exact; parts of the data give the sample of the whole. Source: K. Beyer and others, On synopses for distinct-value
//! estimation under multiset operations, SIGMOD 2007.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Distinct values that are kept.
const DISTINCT: usize = 1 << 14;

/// A sample of the finite values: at most 16 384 distinct ones, each with the number of its occurrences.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Counts by hash and bits, the hash in the upper half.
    counts: BTreeMap<u64, u64>,
}

/// The place of a value: its hash, by which it is kept, and its bits.
fn key(value: f32) -> u64 {
    // Zero has one sign.
    let bits = (value + 0.0).to_bits();
    // Finalizer of MurmurHash3.
    let mut hash = bits;
    for factor in [0x85eb_ca6b_u32, 0xc2b2_ae35] {
        hash = (hash ^ hash >> 16).wrapping_mul(factor);
    }
    u64::from(hash ^ hash >> 16) << 32 | u64::from(bits)
}

impl Sample {
    /// Takes in a batch.
    pub(crate) fn update(&mut self, values: &[f32]) {
        let mut last = self.last();
        for key in values.iter().filter(|value| value.is_finite()).map(|value| key(*value)) {
            if key <= last {
                *self.counts.entry(key).or_insert(0) += 1;
                last = self.trimmed();
            }
        }
    }

    pub(super) fn merge(&mut self, later: &Sample) {
        for (key, count) in &later.counts {
            *self.counts.entry(*key).or_insert(0) += count;
        }
        while self.counts.len() > DISTINCT {
            self.counts.pop_last();
        }
    }

    /// The largest key that may still come in.
    fn last(&self) -> u64 {
        let last = self.counts.last_key_value().filter(|_| self.counts.len() >= DISTINCT);
        last.map_or(u64::MAX, |(key, _)| *key)
    }

    fn trimmed(&mut self) -> u64 {
        if self.counts.len() > DISTINCT {
            self.counts.pop_last();
        }
        self.last()
    }

    /// The values with their counts, in ascending order.
    pub fn values(&self) -> Vec<(f32, u64)> {
        let mut values: Vec<(f32, u64)> =
            self.counts.iter().map(|(key, count)| (f32::from_bits(*key as u32), *count)).collect();
        values.sort_by(|a, b| a.0.total_cmp(&b.0));
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_values_are_all_kept_and_signed_zeros_are_one() {
        let mut sample = Sample::default();
        sample.update(&[3.0, 0.0, -1.5, -0.0, 3.0, f32::NAN, f32::NEG_INFINITY]);
        assert_eq!(sample.values(), [(-1.5, 1), (0.0, 2), (3.0, 2)]);
    }

    #[test]
    fn merged_samples_equal_the_whole_in_any_order() {
        let values: Vec<f32> = (0..60_000).map(|i| (i % 40_000) as f32).collect();
        let part = |range: std::ops::Range<usize>| {
            let mut sample = Sample::default();
            sample.update(&values[range]);
            sample
        };
        let mut merged = part(25_000..60_000);
        merged.merge(&part(0..25_000));
        let whole = part(0..60_000);
        assert_eq!(merged, whole);
        assert_eq!(whole.values().len(), DISTINCT);
        assert!(whole.values().iter().all(|(value, count)| *count == if *value < 20_000.0 { 2 } else { 1 }));
    }
}
