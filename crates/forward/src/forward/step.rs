//! Rows that continue sequences, and what is kept of the tokens before them: keys and values, or the states of recurrent mixers. Not the pass, which is that of
//! [`super::run`], nor which rows to run, which is [`super::session`]'s.

use super::heads::{HeadLayout, Heads};
use super::ops::{Attention, EntryChoice, FurtherKeys, IndexRule, KeyIndex};
use super::recurrent_state::RecurrentState;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// What every block keeps of a sequence.
#[derive(Clone, Debug, Default)]
pub(super) struct SequenceCache {
    blocks: Vec<BlockCache>,
}

/// Of attention rows of keys and of values as queries meet them, one per token, heads side by side; of a recurrent mixer its state.
#[derive(Clone, Debug, Default)]
struct BlockCache {
    keys: Vec<f32>,
    values: Vec<f32>,
    /// The keys of the indexer.
    index: Vec<f32>,
    recurrent: RecurrentState,
}

impl SequenceCache {
    /// One without tokens.
    pub(super) fn new(blocks: usize) -> SequenceCache {
        SequenceCache { blocks: vec![BlockCache::default(); blocks] }
    }
}

/// The rows of a sequence, their positions, and what is kept of it.
type PartOfStep<'c> = ((Range<usize>, &'c Range<usize>), &'c mut SequenceCache);

/// Rows of some sequences that follow the tokens in their caches.
pub(super) struct Step {
    /// Rows of each sequence.
    lengths: Vec<usize>,
    /// Positions of the rows of each sequence.
    positions: Vec<Range<usize>>,
    /// For one thread at a time: blocks follow each other.
    caches: Mutex<Vec<SequenceCache>>,
}

impl Step {
    /// Rows at these positions of sequences with these caches, which have the tokens before them.
    pub(super) fn new(sequences: Vec<(Range<usize>, SequenceCache)>) -> Step {
        let (positions, caches): (Vec<Range<usize>>, Vec<_>) = sequences.into_iter().unzip();
        Step { lengths: positions.iter().map(ExactSizeIterator::len).collect(), positions, caches: Mutex::new(caches) }
    }

    /// The caches, with what the rows added.
    pub(super) fn into_caches(self) -> Vec<SequenceCache> {
        self.caches.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rows of each sequence.
    pub(super) fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The positions of all rows.
    pub(super) fn positions(&self) -> impl Iterator<Item = usize> {
        self.positions.iter().flat_map(Range::clone)
    }

    /// The length of the longest sequence, these rows included.
    pub(super) fn longest(&self) -> usize {
        self.positions.iter().map(|positions| positions.end).max().unwrap_or(0)
    }

    /// The sequence of a row.
    pub(super) fn sequence_of(&self, row: usize) -> usize {
        let mut ends = self.lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        ends.position(|end| row < end).unwrap_or(self.lengths.len())
    }

    /// Appends the rows' keys and values to the caches of a block, unless another one has, and attends with `attend` sequence by sequence.
    /// `attention` is that of the rows alone.
    pub(super) fn attend(
        &self,
        (block, appends): (usize, bool),
        attention: &Attention<'_>,
        attend: impl Fn(&Attention<'_>) -> Vec<f32> + Sync,
    ) -> Vec<f32> {
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut start = 0;
        let parts: Vec<Range<usize>> = self
            .lengths
            .iter()
            .map(|length| {
                start += length;
                start - length..start
            })
            .collect();
        let of_sequence = |(at, ((rows, positions), cache)): (usize, PartOfStep<'_>)| {
            let BlockCache { keys, values, index, .. } = &mut cache.blocks[block];
            let of_rows = attention.index.map(|all| part_of_index(&all, rows.clone()));
            let [queries, new_keys, new_values] =
                [&attention.queries, &attention.keys, &attention.values].map(|heads| part(heads, rows.clone()));
            if appends {
                keys.extend(new_keys.gather());
                values.extend(new_values.gather());
                index.extend(of_rows.iter().flat_map(|new| new.keys.gather()));
            }
            attend(&Attention {
                queries,
                keys: packed(keys, new_keys.layout),
                values: packed(values, new_values.layout),
                length: rows.len(),
                past: positions.start,
                further: attention.further.map(|all| part_of_entries(&all, at, rows.clone())),
                index: of_rows.map(|new| KeyIndex { keys: packed(index, new.keys.layout), ..new }),
                ..attention.clone()
            })
        };
        let rows = parts.into_par_iter().zip(&self.positions).zip(caches.par_iter_mut()).enumerate().map(of_sequence);
        rows.collect::<Vec<Vec<f32>>>().concat()
    }

    /// Calls `recur` with the states of a block's recurrent mixer, one for each sequence, which it continues.
    pub(super) fn recur<R>(&self, block: usize, recur: impl FnOnce(&mut [RecurrentState]) -> R) -> R {
        let mut caches = self.caches.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = caches.iter_mut().map(|cache| std::mem::take(&mut cache.blocks[block].recurrent));
        let mut states: Vec<RecurrentState> = taken.collect();
        let result = recur(&mut states);
        caches.iter_mut().zip(states).for_each(|(cache, state)| cache.blocks[block].recurrent = state);
        result
    }
}

/// Some rows.
fn part<'a>(heads: &Heads<'a>, rows: Range<usize>) -> Heads<'a> {
    Heads { data: &heads.data[rows.start * heads.row_width..rows.end * heads.row_width], ..*heads }
}

/// The entries of the sequence `at`, and the rows that choose among them.
fn part_of_entries<'a>(all: &FurtherKeys<'a>, at: usize, rows: Range<usize>) -> FurtherKeys<'a> {
    let choice = all.choice.map(|choice| {
        let heads = choice.queries.layout.count;
        let weights = &choice.weights[rows.start * heads..rows.end * heads];
        EntryChoice { queries: part(&choice.queries, rows), weights, ..choice }
    });
    FurtherKeys { entries: &all.entries[at..at + 1], choice, ..*all }
}

/// What chooses keys for some rows.
fn part_of_index<'a>(index: &KeyIndex<'a>, rows: Range<usize>) -> KeyIndex<'a> {
    let heads = index.queries.layout.count;
    KeyIndex {
        queries: part(&index.queries, rows.clone()),
        keys: part(&index.keys, rows.clone()),
        rule: match index.rule {
            IndexRule::Keys { weights, most } => {
                IndexRule::Keys { weights: &weights[rows.start * heads..rows.end * heads], most }
            }
            blocks @ IndexRule::Blocks { .. } => blocks,
        },
    }
}

/// Rows of the heads of a layout, side by side.
fn packed(data: &[f32], layout: HeadLayout) -> Heads<'_> {
    let layout = HeadLayout::packed(layout.count, layout.width);
    Heads { data, row_width: layout.count * layout.width, layout }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_belong_to_the_sequence_they_continue() {
        let step = Step::new(vec![(5..7, SequenceCache::new(1)), (0..3, SequenceCache::new(1))]);
        assert_eq!(step.positions().collect::<Vec<_>>(), [5, 6, 0, 1, 2]);
        assert_eq!((0..5).map(|row| step.sequence_of(row)).collect::<Vec<_>>(), [0, 0, 1, 1, 1]);
        assert_eq!((step.longest(), step.lengths()), (7, &[2, 3][..]));
    }
}
