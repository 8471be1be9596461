//! The windows of a text, and the scored tokens in them.

use super::EvaluationError;
use crate::forward::Decoder;
use kvant_data::calibration::TokenDocument;
use std::ops::Range;

/// A piece of the text that passes the model alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its tokens.
    pub tokens: Range<usize>,
    /// The number of scored tokens, at its end. The first of a window is never scored: nothing precedes it.
    pub scored: usize,
}

/// A sequence, of which some tokens at its end are scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoredEnd {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// How many at its end are scored.
    pub scored: usize,
}

/// Sequences joined end to end, with one window for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedSequences {
    /// The tokens of all.
    pub tokens: Vec<u32>,
    /// A window for each.
    pub windows: Vec<Window>,
}

impl JoinedSequences {
    /// Joins sequences. Those of one token, which predict nothing, are left out.
    ///
    /// # Errors
    ///
    /// [`EvaluationError::TooShort`] where no sequence predicts anything.
    pub fn of(sequences: &[Vec<u32>]) -> Result<JoinedSequences, EvaluationError> {
        let (mut tokens, mut windows) = (Vec::new(), Vec::new());
        for sequence in sequences.iter().filter(|sequence| sequence.len() > 1) {
            let start = tokens.len();
            tokens.extend_from_slice(sequence);
            windows.push(Window { tokens: start..tokens.len(), scored: sequence.len() - 1 });
        }
        match windows.is_empty() {
            true => Err(EvaluationError::TooShort { tokens: tokens.len(), window: 2 }),
            false => Ok(JoinedSequences { tokens, windows }),
        }
    }

    /// Joins sequences whose scored tokens are known, even where there are none.
    pub fn of_scored(sequences: &[ScoredEnd]) -> JoinedSequences {
        let (mut tokens, mut windows) = (Vec::new(), Vec::new());
        for sequence in sequences {
            let start = tokens.len();
            tokens.extend_from_slice(&sequence.tokens);
            windows.push(Window { tokens: start..tokens.len(), scored: sequence.scored });
        }
        JoinedSequences { tokens, windows }
    }

    /// Joins documents, each in [`windows`] of its own. A row that does not fill one is a shorter window, one with images a window however
    /// long it is; rows of one token, which predict
    /// nothing, are left out.
    ///
    /// # Errors
    ///
    /// Those of [`windows`] for files that are one document; [`EvaluationError::TooShort`] where no row predicts anything.
    pub fn of_documents(
        documents: &[TokenDocument],
        length: usize,
        stride: Option<usize>,
    ) -> Result<JoinedSequences, EvaluationError> {
        check(length, stride)?;
        let (mut tokens, mut joined) = (Vec::new(), Vec::new());
        for document in documents.iter().filter(|document| !document.is_row || document.tokens.len() > 1) {
            let longest = if document.is_row { document.tokens.len() } else { usize::MAX };
            // Images are not cut.
            let wanted = if document.has_images { longest } else { length };
            let (length, start) = (wanted.min(longest), tokens.len());
            let moved = |window: Window| {
                let Window { tokens, scored } = window;
                Window { tokens: start + tokens.start..start + tokens.end, scored }
            };
            let stride = stride.filter(|_| !document.has_images).map(|stride| stride.min(length));
            joined.extend(windows(document.tokens.len(), length, stride)?.into_iter().map(moved));
            tokens.extend_from_slice(&document.tokens);
        }
        match joined.is_empty() {
            true => Err(EvaluationError::TooShort { tokens: documents.len(), window: 2 }),
            false => Ok(JoinedSequences { tokens, windows: joined }),
        }
    }

    /// The first windows of them, and their tokens; `None` is all.
    pub fn first(mut self, most: Option<usize>) -> JoinedSequences {
        if let Some(most) = most.filter(|most| *most < self.windows.len()) {
            self.windows.truncate(most);
            self.tokens.truncate(self.windows.iter().map(|window| window.tokens.end).max().unwrap_or(0));
        }
        self
    }

    /// The same windows as an encoder-decoder reads them: see [`Decoder::sequences_of`]. All their tokens are scored, since that with which
    /// the decoder begins precedes the first.
    ///
    /// # Errors
    ///
    /// Those of [`Decoder::sequences_of`].
    pub fn of_encoder_decoder(self, decoder: &Decoder<'_>) -> Result<JoinedSequences, EvaluationError> {
        let texts = self.windows.iter().map(|window| self.tokens[window.tokens.clone()].to_vec()).collect::<Vec<_>>();
        let scored: Vec<usize> = texts.iter().map(Vec::len).collect();
        let (mut tokens, mut windows) = (Vec::new(), Vec::new());
        for (sequence, scored) in decoder.sequences_of(texts)?.into_iter().zip(scored) {
            let start = tokens.len();
            tokens.extend(sequence);
            windows.push(Window { tokens: start..tokens.len(), scored });
        }
        Ok(JoinedSequences { tokens, windows })
    }
}

/// Windows of `length` tokens of a text of `tokens`.
///
/// Without a stride they follow each other, a shorter tail is dropped, and every token but a window's first is scored.
/// With a stride they begin that many tokens apart, each scores the tokens that the one before did not reach, and the last
/// ends with the text: every token but the text's first is scored once, and most have a long context.
///
/// # Errors
///
/// Windows that predict nothing or are not filled, strides longer than windows.
pub fn windows(tokens: usize, length: usize, stride: Option<usize>) -> Result<Vec<Window>, EvaluationError> {
    check(length, stride)?;
    if tokens < length {
        return Err(EvaluationError::TooShort { tokens, window: length });
    }
    match stride {
        None => {
            let starts = (0..tokens / length).map(|window| window * length);
            Ok(starts.map(|start| Window { tokens: start..start + length, scored: length - 1 }).collect())
        }
        Some(stride) => Ok(strided(tokens, length, stride)),
    }
}

/// Refuses windows that predict nothing, and strides of zero or that leave gaps.
fn check(length: usize, stride: Option<usize>) -> Result<(), EvaluationError> {
    let is_wrong = |stride: &usize| *stride == 0 || *stride > length;
    match stride.filter(is_wrong) {
        _ if length < 2 => Err(EvaluationError::Window { window: length }),
        Some(stride) => Err(EvaluationError::Stride { stride, window: length }),
        None => Ok(()),
    }
}

fn strided(tokens: usize, length: usize, stride: usize) -> Vec<Window> {
    let mut windows = vec![Window { tokens: 0..length, scored: length - 1 }];
    let mut reached = length;
    while reached < tokens {
        let start = windows.len() * stride;
        let end = (start + length).min(tokens);
        // Where windows do not overlap, the first token of one has nothing before it.
        windows.push(Window { tokens: start..end, scored: (end - reached).min(end - start - 1) });
        reached = end;
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_windows_drop_the_tail() {
        let found = windows(11, 4, None).unwrap();
        assert_eq!(found, [Window { tokens: 0..4, scored: 3 }, Window { tokens: 4..8, scored: 3 }]);
    }

    #[test]
    fn rows_have_windows_of_their_own() {
        let row = |length: usize| TokenDocument { tokens: vec![1; length], is_row: true, has_images: false };
        let found = JoinedSequences::of_documents(&[row(3), row(1), row(9)], 4, None).unwrap();
        let expected = [(0..3, 2), (3..7, 3), (7..11, 3)];
        assert_eq!(found.windows, expected.map(|(tokens, scored)| Window { tokens, scored }));
        assert_eq!(found.tokens.len(), 12);
        let overlapping = JoinedSequences::of_documents(&[row(2), row(6)], 4, Some(3)).unwrap();
        let expected = [(0..2, 1), (2..6, 3), (5..8, 2)];
        assert_eq!(overlapping.windows, expected.map(|(tokens, scored)| Window { tokens, scored }));
        let first = overlapping.first(Some(2));
        assert_eq!((first.windows.len(), first.tokens.len()), (2, 6));
        assert_eq!(found.clone().first(None), found);
        let text = TokenDocument { is_row: false, ..row(3) };
        let short = JoinedSequences::of_documents(&[text], 4, None);
        assert!(matches!(short, Err(EvaluationError::TooShort { tokens: 3, window: 4 })), "{short:?}");
        assert!(matches!(JoinedSequences::of_documents(&[row(1)], 4, None), Err(EvaluationError::TooShort { .. })));
    }

    #[test]
    fn strided_windows_score_every_token_except_the_first_once() {
        for (tokens, length, stride) in [(11, 4, 2), (100, 10, 3), (50, 7, 6), (8, 8, 1), (9, 8, 8)] {
            let found = windows(tokens, length, Some(stride)).unwrap();
            let scored: Vec<usize> = found.iter().flat_map(|w| w.tokens.end - w.scored..w.tokens.end).collect();
            let expected: Vec<usize> =
                if stride < length { (1..tokens).collect() } else { (1..tokens).filter(|t| t % length != 0).collect() };
            assert_eq!(scored, expected, "{tokens} {length} {stride}");
        }
    }

    #[test]
    fn impossible_windows_are_refused() {
        assert!(matches!(windows(10, 1, None), Err(EvaluationError::Window { .. })));
        assert!(matches!(windows(10, 11, None), Err(EvaluationError::TooShort { .. })));
        for stride in [0, 5] {
            assert!(matches!(windows(10, 4, Some(stride)), Err(EvaluationError::Stride { .. })));
        }
    }
}
