//! Attention to keys of tokens and to entries made of windows of tokens, under one softmax. Weights exist, block of rows by block of rows.

use super::ops::{Attention, EntryChoice, FurtherKeys};
use super::weighed::UNSEEN;
use kvant_numeric::linalg::{Matrix, MatrixMut, Precision, Threads, multiply, softmax};
use kvant_numeric::simd::Isa;
use rayon::prelude::*;
use std::ops::Range;

/// Query rows of a block.
const BLOCK: usize = 64;

/// Attention with one key head, whose keys are values, to keys of tokens and to `further` ones. `weights` is called as by
/// [`super::weighed::attend`].
pub(super) fn attend(
    (isa, precision): (Isa, Precision),
    (attention, further): (&Attention<'_>, &FurtherKeys<'_>),
    weights: &(dyn Fn(&mut [f32], usize) + Sync),
) -> Vec<f32> {
    let width = attention.queries.layout.count * attention.values.layout.width;
    let tokens = attention.queries.data.len() / attention.queries.row_width;
    let mut out = vec![0.0; tokens * width];
    out.par_chunks_mut(attention.length * width).enumerate().for_each(|(sequence, rows)| {
        rows.par_chunks_mut(BLOCK * width).enumerate().for_each(|(block, out)| {
            let start = block * BLOCK;
            let rows = start..start + out.len() / width;
            let keys = Keys::new(attention, further, (sequence, rows));
            let mut scores = Vec::new();
            for head in 0..attention.queries.layout.count {
                keys.scores((isa, precision), head, &mut scores);
                weights(&mut scores, keys.count());
                keys.add_values(head, &scores, out);
            }
            out.iter_mut().for_each(|value| *value = precision.round(*value));
        });
    });
    out
}

/// The keys that some queries of a sequence see.
struct Keys<'a> {
    attention: &'a Attention<'a>,
    /// The row of the first query.
    first: usize,
    /// The positions of the queries.
    positions: Range<usize>,
    /// Positions of tokens.
    tokens: Range<usize>,
    /// Keys of tokens, then entries.
    keys: Vec<f32>,
    /// Which entries each query attends to.
    chosen: Vec<bool>,
    entries: usize,
}

impl<'a> Keys<'a> {
    fn new(
        attention: &'a Attention<'a>,
        further: &FurtherKeys<'_>,
        (sequence, rows): (usize, Range<usize>),
    ) -> Keys<'a> {
        let past = attention.past;
        let positions = past + rows.start..past + rows.end;
        let tokens = attention.seen(positions.start).start..attention.seen(positions.end - 1).end;
        let first_key = sequence * (past + attention.length);
        let width = attention.keys.layout.width;
        let all = further.entries.get(sequence).map_or(&[][..], Vec::as_slice);
        let entries = (all.len() / further.row_width.max(1)).min(positions.end / further.rate.max(1));
        let of_tokens = tokens.clone().flat_map(|key| &attention.keys.from(first_key + key, 0)[..width]);
        let of_entries = all.chunks_exact(further.row_width.max(1)).take(entries).flat_map(|entry| &entry[..width]);
        let keys = of_tokens.chain(of_entries).copied().collect();
        let first = sequence * attention.length + rows.start;
        let chosen = positions.clone().enumerate().flat_map(|(row, position)| {
            let seen = entries.min((position + 1) / further.rate.max(1));
            let mut chosen: Vec<bool> = (0..entries).map(|entry| entry < seen).collect();
            if let Some(choice) = further.choice.filter(|choice| seen > choice.most) {
                leave_best(&choice, (first + row, &all[..seen * further.row_width], further.row_width), &mut chosen);
            }
            chosen
        });
        let chosen = chosen.collect();
        Keys { attention, first, positions, tokens, keys, chosen, entries }
    }

    fn count(&self) -> usize {
        self.tokens.len() + self.entries
    }

    fn matrix(&self) -> Matrix<'_> {
        let width = self.attention.keys.layout.width;
        Matrix::new(&self.keys, self.count(), width, width)
    }

    /// The weights of all keys for a head of every query, 0 where it does not see them.
    fn scores(&self, (isa, precision): (Isa, Precision), head: usize, scores: &mut Vec<f32>) {
        let Attention { queries, scale, cap, sinks, .. } = self.attention;
        let (rows, keys) = (self.positions.len(), self.count());
        scores.resize(rows * keys, 0.0);
        let of_queries = Matrix::new(queries.from(self.first, head), rows, queries.layout.width, queries.row_width);
        let place = MatrixMut::new(scores, rows, keys, keys);
        multiply(place, of_queries, self.matrix().transposed(), *scale, Threads::One);
        for (row, (position, line)) in self.positions.clone().zip(scores.chunks_exact_mut(keys)).enumerate() {
            let seen = self.attention.seen(position);
            let (of_tokens, of_entries) = line.split_at_mut(self.tokens.len());
            let unseen = self.tokens.clone().zip(of_tokens).filter(|(key, _)| !seen.contains(key));
            unseen.for_each(|(_, score)| *score = UNSEEN);
            let chosen = &self.chosen[row * self.entries..(row + 1) * self.entries];
            let left = of_entries.iter_mut().zip(chosen).filter(|(_, chosen)| !**chosen);
            left.for_each(|(score, _)| *score = UNSEEN);
            softmax(isa, line, *cap, &[], sinks.get(head).copied());
            line.iter_mut().for_each(|weight| *weight = precision.round(*weight));
        }
    }

    /// Writes what a head of every query gives.
    fn add_values(&self, head: usize, scores: &[f32], out: &mut [f32]) {
        let wide = self.attention.values.layout.width;
        let step = self.attention.queries.layout.count * wide;
        let (rows, keys) = (self.positions.len(), self.count());
        let place = MatrixMut::new(&mut out[head * wide..], rows, wide, step);
        multiply(place, Matrix::new(scores, rows, keys, keys), self.matrix(), 1.0, Threads::One);
    }
}

/// Leaves the entries with the largest scores of those that the query of a row sees.
fn leave_best(choice: &EntryChoice<'_>, (row, entries, row_width): (usize, &[f32], usize), chosen: &mut [bool]) {
    let (heads, width) = (choice.queries.layout.count, choice.queries.layout.width);
    let weights = &choice.weights[row * heads..(row + 1) * heads];
    let score = |key: &[f32]| -> f32 {
        let product = |head: usize| -> f32 {
            let query = &choice.queries.from(row, head)[..width];
            query.iter().zip(key).map(|(q, k)| q * k).sum::<f32>()
        };
        weights.iter().enumerate().map(|(head, weight)| weight * product(head).max(0.0)).sum()
    };
    let keys = entries.chunks_exact(row_width).map(|entry| &entry[choice.start..choice.start + width]);
    let mut scores: Vec<(usize, f32)> = keys.map(score).enumerate().collect();
    scores.sort_by(|a, b| b.1.total_cmp(&a.1));
    scores[choice.most..].iter().for_each(|(entry, _)| chosen[*entry] = false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::{HeadLayout, Heads};
    use kvant_numeric::linalg::ScoreBias;

    /// Attention of one head of one component to its last two tokens, and to entries of two tokens each.
    fn outputs(entries: Vec<f32>, choice: Option<EntryChoice<'_>>) -> Vec<f32> {
        let heads = |data, width| Heads { data, row_width: width, layout: HeadLayout::row(width) };
        let (queries, keys) = ([0.0; 5], [1.0, 2.0, 4.0, 8.0, 16.0]);
        let attention = Attention {
            queries: heads(&queries, 1),
            keys: heads(&keys, 1),
            values: heads(&keys, 1),
            length: 5,
            past: 0,
            scale: 1.0,
            cap: None,
            window: Some(2),
            foreign: None,
            ends: &[],
            ahead: 0,
            chunk: None,
            sinks: &[],
            bias: ScoreBias::NONE,
            index: None,
            further: None,
        };
        let further = FurtherKeys { entries: &[entries], row_width: 2, rate: 2, choice };
        attend((Isa::BASELINE, Precision::F32), (&attention, &further), &|_, _| {})
    }

    #[test]
    fn queries_see_entries_of_windows_that_have_ended() {
        // All scores are equal: the mean of what is seen.
        let found = outputs(vec![100.0, 0.0, 1000.0, 0.0], None);
        let expected = [1.0, (1.0 + 2.0 + 100.0) / 3.0, (2.0 + 4.0 + 100.0) / 3.0, 1112.0 / 4.0, 1124.0 / 4.0];
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-3), "{found:?}");
    }

    #[test]
    fn the_entry_with_the_largest_score_is_left() {
        let queries = [1.0; 5];
        let choice = EntryChoice {
            queries: Heads { data: &queries, row_width: 1, layout: HeadLayout::row(1) },
            weights: &[1.0; 5],
            start: 1,
            most: 1,
        };
        let found = outputs(vec![100.0, 3.0, 1000.0, 2.0], Some(choice));
        assert!((found[3] - 112.0 / 3.0).abs() < 1e-3, "{found:?}");
        let found = outputs(vec![100.0, 1.0, 1000.0, 2.0], Some(choice));
        assert!((found[3] - 1012.0 / 3.0).abs() < 1e-3, "{found:?}");
    }
}
