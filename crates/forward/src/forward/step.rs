//! Rows that continue sequences, and the keys and values of the tokens before them. Not the pass, which is that of
//! [`super::run`], nor which rows to run, which is [`super::session`]'s.

use super::heads::{HeadLayout, Heads};
use super::ops::Attention;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The keys and values of a sequence, as the queries of every block meet them.
#[derive(Clone, Debug, Default)]
pub(super) struct KeyValueCache {
    blocks: Vec<BlockCache>,
}

/// Rows of keys and of values, one per token, heads side by side.
#[derive(Clone, Debug, Default)]
struct BlockCache {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl KeyValueCache {
    /// One without tokens.
    pub(super) fn new(blocks: usize) -> KeyValueCache {
        KeyValueCache { blocks: vec![BlockCache::default(); blocks] }
    }
}

/// Rows of some sequences that follow the tokens in their caches.
pub(super) struct Step {
    /// Rows of each sequence.
    lengths: Vec<usize>,
    /// Positions of the rows of each sequence.
    positions: Vec<Range<usize>>,
    /// For one thread at a time: blocks follow each other.
    caches: Mutex<Vec<KeyValueCache>>,
}

impl Step {
    /// Rows at these positions of sequences with these caches, which have the tokens before them.
    pub(super) fn new(sequences: Vec<(Range<usize>, KeyValueCache)>) -> Step {
        let (positions, caches): (Vec<Range<usize>>, Vec<_>) = sequences.into_iter().unzip();
        Step { lengths: positions.iter().map(ExactSizeIterator::len).collect(), positions, caches: Mutex::new(caches) }
    }

    /// The caches, with what the rows added.
    pub(super) fn into_caches(self) -> Vec<KeyValueCache> {
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

    /// Appends the rows' keys and values to the caches, and attends with `attend` sequence by sequence. `attention` is that of the
    /// rows alone.
    pub(super) fn attend(
        &self,
        block: usize,
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
        let of_sequence = |((rows, positions), cache): ((Range<usize>, &Range<usize>), &mut KeyValueCache)| {
            let BlockCache { keys, values } = &mut cache.blocks[block];
            let [queries, new_keys, new_values] =
                [&attention.queries, &attention.keys, &attention.values].map(|heads| part(heads, rows.clone()));
            keys.extend(new_keys.gather());
            values.extend(new_values.gather());
            attend(&Attention {
                queries,
                keys: packed(keys, new_keys.layout),
                values: packed(values, new_values.layout),
                length: rows.len(),
                past: positions.start,
                ..attention.clone()
            })
        };
        let rows = parts.into_par_iter().zip(&self.positions).zip(caches.par_iter_mut()).map(of_sequence);
        rows.collect::<Vec<Vec<f32>>>().concat()
    }
}

/// Some rows.
fn part<'a>(heads: &Heads<'a>, rows: Range<usize>) -> Heads<'a> {
    Heads { data: &heads.data[rows.start * heads.row_width..rows.end * heads.row_width], ..*heads }
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
        let step = Step::new(vec![(5..7, KeyValueCache::new(1)), (0..3, KeyValueCache::new(1))]);
        assert_eq!(step.positions().collect::<Vec<_>>(), [5, 6, 0, 1, 2]);
        assert_eq!((0..5).map(|row| step.sequence_of(row)).collect::<Vec<_>>(), [0, 0, 1, 1, 1]);
        assert_eq!((step.longest(), step.lengths()), (7, &[2, 3][..]));
    }
}
