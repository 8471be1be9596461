//! The windows of a text, and the scored tokens in them.

use super::EvaluationError;
use std::ops::Range;

/// A piece of the text that passes the model alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its tokens.
    pub tokens: Range<usize>,
    /// The number of scored tokens, at its end. The first of a window is never scored: nothing precedes it.
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
    if length < 2 {
        return Err(EvaluationError::Window { window: length });
    }
    if tokens < length {
        return Err(EvaluationError::TooShort { tokens, window: length });
    }
    match stride {
        None => {
            let starts = (0..tokens / length).map(|window| window * length);
            Ok(starts.map(|start| Window { tokens: start..start + length, scored: length - 1 }).collect())
        }
        Some(stride) if stride == 0 || stride > length => Err(EvaluationError::Stride { stride, window: length }),
        Some(stride) => Ok(strided(tokens, length, stride)),
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
