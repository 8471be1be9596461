//! Selects documents and packs them into sequences: the first ones, or the first in the order of a seed,
//! never more than needed.

use super::Packing;
use kvant_quant::random::{SplitMix64, mix};
use std::collections::{BTreeSet, BinaryHeap};

/// Random windows are drawn from so many tokens, which take a quarter of a gigabyte, or four times what is asked for.
const MOST_JOINED: u64 = 1 << 26;

/// The origin of tokens: file, row and window numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowOrigin {
    pub file: usize,
    pub row: u64,
    pub window: u64,
}

/// Tokens that may be taken, ordered by when they are.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Unit {
    key: (u64, RowOrigin),
    tokens: Vec<u32>,
}

/// The units taken so far.
#[derive(Debug)]
pub(super) struct Selection {
    samples: usize,
    held_out: usize,
    length: usize,
    seed: u64,
    shuffle: bool,
    units: BinaryHeap<Unit>,
    /// Whether units are joined at the end.
    joining: Option<Joining>,
    /// How much there is of what [`Self::needed`] counts.
    have: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Joining {
    Consecutive,
    Random,
}

impl Selection {
    /// Takes units for `samples` sequences of `length`, packed as asked.
    pub(super) fn new(options: &super::Options) -> Selection {
        let joining = match options.packing {
            Some(Packing::Concatenate) => Some(Joining::Consecutive),
            Some(Packing::Random) => Some(Joining::Random),
            _ => None,
        };
        let &super::Options { samples, held_out, sequence_length: length, seed, shuffle, .. } = options;
        Selection { samples, held_out, length, seed, shuffle, units: BinaryHeap::new(), joining, have: 0 }
    }

    /// The needed amount: sequences, or tokens if they are joined.
    fn needed(&self) -> u64 {
        match self.joining {
            None => self.all() as u64,
            Some(Joining::Consecutive) => self.tokens_of(self.all()),
            // What windows are drawn from does not depend on how many are held out.
            Some(Joining::Random) => MOST_JOINED.max(self.tokens_of(self.samples).saturating_mul(4)),
        }
    }

    /// Requested sequences, including held-out ones.
    fn all(&self) -> usize {
        self.samples.saturating_add(self.held_out)
    }

    fn tokens_of(&self, sequences: usize) -> u64 {
        (sequences as u64).saturating_mul(self.length as u64)
    }

    fn weight(&self, tokens: &[u32]) -> u64 {
        if self.joining.is_none() { 1 } else { tokens.len() as u64 }
    }

    fn key(&self, origin: RowOrigin) -> (u64, RowOrigin) {
        let RowOrigin { file, row, window } = origin;
        (if self.shuffle { mix(self.seed, [file as u64, row, window]) } else { 0 }, origin)
    }

    /// Returns whether no later unit would be taken.
    pub(super) fn is_full(&self) -> bool {
        !self.shuffle && self.have >= self.needed()
    }

    /// Returns whether a unit of this origin would be taken.
    pub(super) fn wants(&self, origin: RowOrigin) -> bool {
        self.have < self.needed() || self.units.peek().is_some_and(|last| self.key(origin) < last.key)
    }

    /// Takes a unit, and lets go of those that it makes superfluous.
    pub(super) fn put(&mut self, origin: RowOrigin, tokens: Vec<u32>) {
        if !self.wants(origin) {
            return;
        }
        self.have += self.weight(&tokens);
        self.units.push(Unit { key: self.key(origin), tokens });
        while let Some(last) = self.units.peek() {
            let without = self.have - self.weight(&last.tokens);
            if without < self.needed() {
                break;
            }
            self.have = without;
            self.units.pop();
        }
    }

    /// Lets go of what came from a file, which is read again. What it has made superfluous does not come back, so that must be
    /// before there is enough.
    pub(super) fn forget(&mut self, file: usize) {
        self.units.retain(|unit| unit.key.1.file != file);
        self.have = self.units.iter().map(|unit| self.weight(&unit.tokens)).sum();
    }

    /// How many sequences there are tokens for, at most as many as are asked for.
    pub(super) fn filled(&self) -> usize {
        let filled = match self.joining {
            None => self.have,
            Some(_) => self.have / self.length as u64,
        };
        usize::try_from(filled).map_or(self.samples, |filled| filled.min(self.samples))
    }

    /// How many sequences there are that are shorter than a window: documents, or what there is of all where they are joined.
    pub(super) fn filled_short(&self) -> usize {
        match self.joining {
            None => self.filled(),
            Some(_) => usize::from(self.have > 0),
        }
    }

    /// Returns whether there are all sequences that are asked for, with or without those that are held out.
    pub(super) fn has_samples(&self) -> bool {
        !self.shuffle && self.filled() >= self.samples
    }

    /// How many rows of each of the first `files` files are taken.
    pub(super) fn rows_used(&self, files: usize) -> Vec<u64> {
        let rows: BTreeSet<_> = self.units.iter().map(|unit| (unit.key.1.file, unit.key.1.row)).collect();
        (0..files).map(|file| rows.range((file, 0)..=(file, u64::MAX)).count() as u64).collect()
    }

    /// The sequences, and those that are held out.
    pub(super) fn finish(self) -> [Vec<Vec<u32>>; 2] {
        let (samples, all) = (self.samples, self.all());
        let mut sequences: Vec<Vec<u32>> = self.units.into_sorted_vec().into_iter().map(|unit| unit.tokens).collect();
        if let Some(joining) = self.joining {
            let joined = sequences.concat();
            sequences = match joining {
                // Less than a window is one sequence, as it is.
                _ if joined.len() < self.length && !joined.is_empty() => vec![joined],
                Joining::Consecutive => joined.chunks_exact(self.length).take(all).map(<[u32]>::to_vec).collect(),
                Joining::Random => {
                    return random_windows(&joined, [samples, self.held_out], self.length, self.seed);
                }
            };
        }
        let held_out = sequences.split_off(sequences.len().min(samples));
        [sequences, held_out]
    }
}

/// Windows whose starts are drawn one after another, each place as likely as the others and perhaps more than once; then
/// those that are held out, which share no token with them. Where there is hardly any room for these, there are fewer.
fn random_windows(tokens: &[u32], counts: [usize; 2], length: usize, seed: u64) -> [Vec<Vec<u32>>; 2] {
    let Some(last) = tokens.len().checked_sub(length) else { return Default::default() };
    let mut random = SplitMix64::new(seed);
    let mut start = || random.below(last as u64 + 1) as usize;
    let starts: Vec<usize> = (0..counts[0]).map(|_| start()).collect();
    let drawn: BTreeSet<usize> = starts.iter().copied().collect();
    let is_free = |start: usize| drawn.range((start + 1).saturating_sub(length)..start + length).next().is_none();
    let candidates = (0..TRIES * counts[1]).map(|_| start());
    let held_out: Vec<usize> = candidates.filter(|start| is_free(*start)).take(counts[1]).collect();
    let window = |start: usize| tokens[start..start + length].to_vec();
    [starts, held_out].map(|starts| starts.into_iter().map(window).collect())
}

/// Places that are looked at for each window that is held out.
const TRIES: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::Options;

    fn selection(packing: Packing, samples: usize, length: usize) -> Selection {
        Selection::new(&Options { packing: Some(packing), ..Options::new(["x"], samples, length) })
    }

    fn origin(row: u64) -> RowOrigin {
        RowOrigin { file: 0, row, window: 0 }
    }

    #[test]
    fn first_samples_are_taken() {
        let mut taken = selection(Packing::Sample, 2, 9);
        for row in 0..4 {
            assert_eq!((taken.is_full(), taken.wants(origin(row))), (row >= 2, row < 2));
            taken.put(origin(row), vec![row as u32]);
        }
        assert_eq!((taken.filled(), taken.rows_used(2)), (2, vec![2, 0]));
        assert_eq!(taken.finish(), [vec![vec![0], vec![1]], vec![]]);
    }

    #[test]
    fn held_out_sequences_follow_the_samples() {
        let rows = |packing, held_out, shuffle, available: u64| {
            let options = Options { packing: Some(packing), held_out, shuffle, ..Options::new(["x"], 3, 2) };
            let mut taken = Selection::new(&options);
            (0..available).for_each(|row| taken.put(origin(row), vec![2 * row as u32, 2 * row as u32 + 1]));
            taken.finish()
        };
        for packing in Packing::ALL {
            for shuffle in [false, true] {
                let [samples, none] = rows(packing, 0, shuffle, 400);
                let [same, held_out] = rows(packing, 2, shuffle, 400);
                assert_eq!((&samples, none.len(), held_out.len()), (&same, 0, 2), "{packing:?} {shuffle}");
                let seen = |token: &u32| samples.iter().flatten().any(|other| other == token);
                assert!(!held_out.iter().flatten().any(seen), "{packing:?} {shuffle}");
            }
        }
        let [samples, held_out] = rows(Packing::Sample, 2, false, 4);
        assert_eq!((samples.len(), held_out.len()), (3, 1));
        let [samples, held_out] = rows(Packing::Sample, 2, false, 3);
        assert_eq!((samples.len(), held_out.len()), (3, 0));
    }

    #[test]
    fn rows_are_joined_and_cut() {
        let mut taken = selection(Packing::Concatenate, 2, 3);
        (0..4).for_each(|row| taken.put(origin(row), vec![10 * row as u32, 10 * row as u32 + 1]));
        assert_eq!(taken.rows_used(1), [3]);
        assert_eq!(taken.finish(), [vec![vec![0, 1, 10], vec![11, 20, 21]], vec![]]);
    }

    #[test]
    fn shuffling_is_bounded_and_independent_of_arrival_order() {
        let shuffled = |rows: &mut dyn Iterator<Item = u64>, seed| {
            let mut taken = selection(Packing::Sample, 3, 9);
            (taken.shuffle, taken.seed) = (true, seed);
            rows.for_each(|row| taken.put(origin(row), vec![row as u32]));
            assert_eq!((taken.units.len(), taken.is_full()), (3, false));
            taken.finish().concat().concat()
        };
        let first = shuffled(&mut (0..1000), 1);
        assert_eq!(shuffled(&mut (0..1000).rev(), 1), first);
        assert_ne!(shuffled(&mut (0..1000), 2), first);
        assert!(first.iter().any(|&row| row > 3), "{first:?}");
    }

    #[test]
    fn shuffled_rows_are_joined_only_as_far_as_needed() {
        let mut taken = selection(Packing::Concatenate, 2, 3);
        taken.shuffle = true;
        (0..100).for_each(|row| taken.put(origin(row), vec![row as u32; 1 + row as usize % 4]));
        assert!(taken.have >= 6 && taken.have <= 9, "{}", taken.have);
        assert_eq!(taken.finish()[0].len(), 2);
    }

    #[test]
    fn random_windows_start_anywhere() {
        let tokens: Vec<u32> = (0..10).collect();
        let random_windows = |samples, length| {
            let [windows, _] = random_windows(&tokens, [samples, 0], length, 3);
            windows
        };
        let windows = random_windows(200, 4);
        assert!(windows.iter().all(|window| window.windows(2).all(|pair| pair[1] == pair[0] + 1)));
        let starts: BTreeSet<u32> = windows.iter().map(|window| window[0]).collect();
        assert_eq!(starts, (0..7).collect());
        assert_eq!(windows, random_windows(200, 4));
        assert_eq!(random_windows(2, 10), [&tokens[..], &tokens]);
        assert!(random_windows(2, 11).is_empty());
    }
}
