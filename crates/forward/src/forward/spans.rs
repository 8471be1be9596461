//! The rows of a buffer that belong to one sequence: per-tensor parameters are found per sequence, as if each had passed
//! the model alone.

use super::layout::ImageSpan;

/// Rows of sequences, one sequence after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spans<'a> {
    /// Every sequence has as many.
    Even(usize),
    /// The number of rows of each sequence that has any.
    Listed(&'a [usize]),
    /// One sequence, in which these images stand.
    One(&'a [ImageSpan]),
}

impl<'a> Spans<'a> {
    /// The numbers of rows, `rows` in all.
    pub fn of(self, rows: usize) -> Box<dyn Iterator<Item = usize> + 'a> {
        match self {
            Spans::Even(length) => Box::new(std::iter::repeat_n(length.max(1), rows / length.max(1))),
            Spans::Listed(lengths) => Box::new(lengths.iter().copied()),
            Spans::One(_) => Box::new((rows > 0).then_some(rows).into_iter()),
        }
    }
}

/// The spans of some rows of a buffer whose rows are of the sequences that `sequence_of` says; `rows` ascend.
pub(super) fn spans_of(rows: impl Iterator<Item = usize>, sequence_of: impl Fn(usize) -> usize) -> Vec<usize> {
    let mut spans = Vec::new();
    let mut last = None;
    for row in rows {
        let sequence = Some(sequence_of(row));
        if sequence != last {
            spans.push(0);
            last = sequence;
        }
        if let Some(span) = spans.last_mut() {
            *span += 1;
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_by_sequence() {
        assert_eq!(spans_of([0, 2, 3, 9, 10].into_iter(), |row| row / 4), [3, 2]);
        assert_eq!(spans_of(std::iter::empty(), |row| row / 4), Vec::<usize>::new());
        assert_eq!(Spans::Even(4).of(8).collect::<Vec<_>>(), [4, 4]);
        assert_eq!(Spans::Listed(&[3, 2]).of(5).collect::<Vec<_>>(), [3, 2]);
    }
}
