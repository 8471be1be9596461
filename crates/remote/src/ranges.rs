//! Sets of bytes of a file.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of bytes, as ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    /// The end of each range by its start.
    ends: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds a range.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        for (other, other_end) in self.touching(start..end) {
            self.ends.remove(&other);
            (start, end) = (start.min(other), end.max(other_end));
        }
        self.ends.insert(start, end);
    }

    /// Takes a range away.
    pub fn remove(&mut self, range: &Range<u64>) {
        for (start, end) in self.touching(range.clone()) {
            self.ends.remove(&start);
            self.insert(start..end.min(range.start));
            self.insert(start.max(range.end)..end);
        }
    }

    /// Returns whether all of a range is in the set.
    pub fn contains(&self, range: &Range<u64>) -> bool {
        let before = self.ends.range(..=range.start).next_back();
        range.is_empty() || before.is_some_and(|(_, end)| *end >= range.end)
    }

    /// The parts of a range that are not in the set, in order.
    pub fn missing(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let mut at = range.start;
        let mut missing = Vec::new();
        for (start, end) in self.touching(range.clone()) {
            if start > at {
                missing.push(at..start.min(range.end));
            }
            at = at.max(end);
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        missing
    }

    /// The parts of a range that are in the set, in order.
    pub fn inside(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let inside = self.touching(range.clone()).into_iter();
        inside.map(|(start, end)| start.max(range.start)..end.min(range.end)).filter(|part| !part.is_empty()).collect()
    }

    /// The ranges that overlap or touch another.
    fn touching(&self, range: Range<u64>) -> Vec<(u64, u64)> {
        let before = self.ends.range(..range.start).next_back();
        let from = before.filter(|(_, end)| **end >= range.start).map_or(range.start, |(start, _)| *start);
        self.ends.range(from..=range.end).map(|(start, end)| (*start, *end)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a set of single bytes, over all pairs of a small file.
    #[test]
    fn sets_agree_with_sets_of_single_bytes() {
        const LEN: u64 = 7;
        let all = || (0..=LEN).flat_map(|start| (start..=LEN).map(move |end| start..end));
        for one in all() {
            for other in all() {
                let mut ranges = Ranges::default();
                let mut bytes = [false; LEN as usize];
                ranges.insert(one.clone());
                ranges.insert(other.clone());
                one.clone().chain(other.clone()).for_each(|byte| bytes[byte as usize] = true);
                for third in all() {
                    let mut ranges = ranges.clone();
                    let mut bytes = bytes;
                    ranges.remove(&third);
                    third.clone().for_each(|byte| bytes[byte as usize] = false);
                    let found: Vec<u64> = ranges.missing(&(0..LEN)).into_iter().flatten().collect();
                    let expected: Vec<u64> = (0..LEN).filter(|byte| !bytes[*byte as usize]).collect();
                    assert_eq!(found, expected, "{one:?} {other:?} without {third:?}");
                    let inside: Vec<u64> = ranges.inside(&(0..LEN)).into_iter().flatten().collect();
                    assert!((0..LEN).all(|byte| inside.contains(&byte) != expected.contains(&byte)));
                    for asked in all() {
                        let is_in = asked.clone().all(|byte| bytes[byte as usize]);
                        assert_eq!(ranges.contains(&asked), is_in, "{asked:?}");
                    }
                }
            }
        }
    }
}
