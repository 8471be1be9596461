//! Sequences of encoder-decoders. A sequence is the tokens that the encoder reads, which are marked, then those of the decoder; its rows of
//! the stream are those of both. Computes nothing.

use super::blueprint::Stacks;
use std::borrow::Cow;
use std::ops::Range;

/// The bit that tokens of an encoder have beside their number.
const MARK: u32 = 1 << 31;

/// Tokens of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceLength {
    /// All.
    pub all: usize,
    /// Those at its start that the encoder of an encoder-decoder reads.
    pub source: usize,
}

impl From<usize> for SequenceLength {
    /// Of a model of one stack of blocks.
    fn from(all: usize) -> SequenceLength {
        SequenceLength { all, source: 0 }
    }
}

impl SequenceLength {
    /// Of a sequence of tokens.
    pub fn of(tokens: &[u32]) -> SequenceLength {
        SequenceLength { all: tokens.len(), source: tokens.iter().take_while(|token| is_marked(**token)).count() }
    }

    /// The rows of a sequence that a block of an encoder-decoder changes.
    pub fn rows_of(self, stacks: &Stacks, block: usize) -> Range<usize> {
        if block < stacks.encoder_blocks { 0..self.source } else { self.source..self.all }
    }

    /// Some rows of `width` elements of every sequence.
    pub(super) fn gather(self, rows: &[f32], part: &Range<usize>, width: usize) -> Vec<f32> {
        let sequences = rows.chunks_exact((self.all * width).max(1));
        sequences.flat_map(|sequence| &sequence[part.start * width..part.end * width]).copied().collect()
    }

    /// Writes rows where [`SequenceLength::gather`] takes them from.
    pub(super) fn scatter(self, values: &[f32], part: &Range<usize>, width: usize, rows: &mut [f32]) {
        let sequences = rows.chunks_exact_mut((self.all * width).max(1));
        for (sequence, values) in sequences.zip(values.chunks_exact((part.len() * width).max(1))) {
            sequence[part.start * width..part.end * width].copy_from_slice(values);
        }
    }

    /// The rows that a block changes, of rows of `width` elements: all where there is one stack.
    pub fn changed<'r>(self, stacks: Option<&Stacks>, block: usize, width: usize, rows: &'r [f32]) -> Cow<'r, [f32]> {
        match stacks {
            None => Cow::Borrowed(rows),
            Some(stacks) => Cow::Owned(self.gather(rows, &self.rows_of(stacks, block), width)),
        }
    }
}

/// A token of an encoder.
pub(super) fn marked(token: u32) -> u32 {
    token | MARK
}

/// Its number.
pub(super) fn unmarked(token: u32) -> u32 {
    token & !MARK
}

fn is_marked(token: u32) -> bool {
    token & MARK != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_part_are_taken_and_put_back() {
        let length = SequenceLength::of(&[marked(3), marked(4), 0, 3, 4]);
        assert_eq!(length, SequenceLength { all: 5, source: 2 });
        assert_eq!(unmarked(marked(7)), 7);
        let rows: Vec<f32> = (0..20).map(|i| i as f32).collect();
        let part = length.gather(&rows, &(2..5), 2);
        assert_eq!(part, [4., 5., 6., 7., 8., 9., 14., 15., 16., 17., 18., 19.]);
        let mut other = vec![0.0; 20];
        length.scatter(&part, &(2..5), 2, &mut other);
        assert_eq!((other[3], other[4], other[13], other[19]), (0.0, 4.0, 0.0, 19.0));
    }
}
