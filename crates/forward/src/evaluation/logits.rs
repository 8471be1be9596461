//! Evaluating a model that another engine runs: its logits come window by window, and are scored as those of
//! [`evaluate`](super::evaluate()) are. Logits of more than one window are never kept.

use super::EvaluationError;
use super::changed::most_changed;
use super::comparison::Comparison;
use super::evaluate::{Evaluation, perplexity_or};
use super::predicted::pieces;
use super::score::{Score, ScorePair};
use super::statistics::{TokenPlace, ranges_of_pairs, ranges_of_scores};
use super::windows::Window;
use kvant_numeric::simd::Isa;
use rayon::prelude::*;
use std::time::Instant;

/// The scores of the windows so far, of a model alone or beside its reference.
#[derive(Debug)]
pub struct LogitsEvaluation<'t> {
    tokens: &'t [u32],
    windows: &'t [Window],
    /// Log-likelihoods of the scored tokens.
    scores: Vec<(TokenPlace, f64)>,
    /// The same beside the reference's, where there is one.
    pairs: Vec<(TokenPlace, ScorePair)>,
    /// Windows that are scored.
    done: usize,
    start: Instant,
}

/// Logits of a window's tokens, `[tokens, vocabulary]` in row-major order: each row predicts the token behind its own.
#[derive(Clone, Copy, Debug)]
pub struct WindowLogits<'l> {
    /// The model's.
    pub model: &'l [f32],
    /// The reference's, as many.
    pub reference: Option<&'l [f32]>,
}

impl<'t> LogitsEvaluation<'t> {
    /// An evaluation on the windows of a text. The clock starts.
    pub fn new(tokens: &'t [u32], windows: &'t [Window]) -> LogitsEvaluation<'t> {
        LogitsEvaluation { tokens, windows, scores: Vec::new(), pairs: Vec::new(), done: 0, start: Instant::now() }
    }

    /// Takes in the logits of the next window. A reference is there for all windows or for none.
    ///
    /// # Errors
    ///
    /// [`EvaluationError::LogitsShape`] where they are not a row for each token of the window.
    pub fn add(&mut self, logits: WindowLogits<'_>) -> Result<(), EvaluationError> {
        let Some(window) = self.windows.get(self.done) else { return Ok(()) };
        let (tokens, values) = (window.tokens.len(), logits.model.len());
        let vocabulary = values / tokens.max(1);
        let is_whole = |logits: &[f32]| logits.len() == tokens * vocabulary;
        if vocabulary == 0 || !is_whole(logits.model) || !logits.reference.is_none_or(is_whole) {
            return Err(EvaluationError::LogitsShape { tokens, values });
        }
        // The row before a token predicts it.
        let rows = (tokens - window.scored - 1) * vocabulary..(tokens - 1) * vocabulary;
        let targets = &self.tokens[window.tokens.end - window.scored..window.tokens.end];
        let model = &logits.model[rows.clone()];
        let window = self.done;
        let places = (tokens - targets.len()..tokens).map(|token| TokenPlace { window, token, context: token });
        match logits.reference {
            None => self.scores.extend(places.zip(scored(model, targets, vocabulary))),
            Some(reference) => {
                let pairs = compared(model, &reference[rows], targets, vocabulary);
                self.scores.extend(places.clone().zip(pairs.iter().map(|pair| pair.model.log_likelihood())));
                self.pairs.extend(places.zip(pairs));
            }
        }
        self.done += 1;
        Ok(())
    }

    /// The evaluation of the windows that were added. Blocks are unknown.
    ///
    /// # Errors
    ///
    /// Likelihoods that are NaN.
    pub fn finish(self) -> Result<Evaluation, EvaluationError> {
        let windows = &self.windows[..self.done];
        let not_a_number = |at, token| EvaluationError::NotANumberElsewhere { at, token };
        let (ranges, comparison) = match self.pairs.is_empty() {
            true => (ranges_of_scores(&self.scores), None),
            false => {
                let of_reference = self.pairs.iter().map(|(place, pair)| (*place, pair.reference.log_likelihood()));
                let perplexity = perplexity_or(&of_reference.collect::<Vec<_>>(), not_a_number)?.value;
                let comparison = Comparison {
                    changed: most_changed(&self.pairs, self.tokens, windows),
                    ..Comparison::new(perplexity, &self.pairs, &[])
                };
                (ranges_of_pairs(&self.pairs), Some(comparison))
            }
        };
        let perplexity = perplexity_or(&self.scores, not_a_number)?;
        Ok(Evaluation {
            perplexity: perplexity.value,
            perplexity_error: perplexity.error,
            tokens: self.scores.len(),
            windows: windows.len(),
            window: windows.iter().map(|window| window.tokens.len()).max().unwrap_or(0),
            passed: windows.iter().map(|window| window.tokens.len()).sum(),
            seconds: self.start.elapsed().as_secs_f64(),
            ranges,
            comparison,
        })
    }
}

/// The log-likelihood of each target, given its row.
fn scored(logits: &[f32], targets: &[u32], vocabulary: usize) -> Vec<f64> {
    let of_row = |(row, target): (&[f32], &u32)| {
        let mut score = Score::default();
        for (start, piece) in pieces(vocabulary, 1) {
            score.add(Isa::best(), &row[start..start + piece], start, *target as usize);
        }
        score.log_likelihood()
    };
    logits.par_chunks_exact(vocabulary).zip(targets).map(of_row).collect()
}

/// Both models' scores of each target, given its rows.
fn compared(model: &[f32], reference: &[f32], targets: &[u32], vocabulary: usize) -> Vec<ScorePair> {
    let of_rows = |((model, reference), target): ((&[f32], &[f32]), &u32)| {
        let mut pair = ScorePair::default();
        for (start, piece) in pieces(vocabulary, 1) {
            let range = start..start + piece;
            pair.add(Isa::best(), (&model[range.clone()], &reference[range]), start, *target as usize);
        }
        pair
    };
    model.par_chunks_exact(vocabulary).zip(reference.par_chunks_exact(vocabulary)).zip(targets).map(of_rows).collect()
}

#[cfg(test)]
mod tests {
    use super::super::windows::windows;
    use super::*;

    const VOCABULARY: usize = 5;

    /// Logits of a window's tokens, some for each model.
    fn logits(window: &Window, seed: f32) -> Vec<f32> {
        let count = window.tokens.len() * VOCABULARY;
        (0..count).map(|i| ((i + window.tokens.start * VOCABULARY) as f32 * seed).sin() * 3.0).collect()
    }

    fn probabilities(row: &[f32]) -> Vec<f64> {
        let sum: f64 = row.iter().map(|z| f64::from(*z).exp()).sum();
        row.iter().map(|z| f64::from(*z).exp() / sum).collect()
    }

    #[test]
    fn every_token_is_scored_by_the_row_before_it() {
        let tokens: Vec<u32> = (0..23).map(|i| i * 7 % VOCABULARY as u32).collect();
        let windows = windows(tokens.len(), 8, Some(3)).unwrap();
        let mut evaluation = LogitsEvaluation::new(&tokens, &windows);
        let (mut losses, mut divergences) = (Vec::new(), Vec::new());
        for window in &windows {
            let (model, reference) = (logits(window, 0.7), logits(window, 0.71));
            for token in window.tokens.end - window.scored..window.tokens.end {
                let row = (token - 1 - window.tokens.start) * VOCABULARY;
                let q = probabilities(&model[row..row + VOCABULARY]);
                let p = probabilities(&reference[row..row + VOCABULARY]);
                losses.push(-q[tokens[token] as usize].ln());
                divergences.push(p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum::<f64>());
            }
            evaluation.add(WindowLogits { model: &model, reference: Some(&reference) }).unwrap();
        }
        let found = evaluation.finish().unwrap();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        assert_eq!((found.tokens, found.windows, found.window), (22, windows.len(), 8));
        assert!((found.perplexity / mean(&losses).exp() - 1.0).abs() < 1e-5, "{found:?}");
        let comparison = found.comparison.unwrap();
        assert!((comparison.kl_mean.value / mean(&divergences) - 1.0).abs() < 1e-4, "{comparison:?}");
    }

    #[test]
    fn logits_that_are_not_a_row_for_each_token_are_refused() {
        let tokens = [1; 8];
        let windows = windows(8, 4, None).unwrap();
        let mut evaluation = LogitsEvaluation::new(&tokens, &windows);
        let error = evaluation.add(WindowLogits { model: &[0.0; 3], reference: None }).unwrap_err();
        assert!(matches!(error, EvaluationError::LogitsShape { tokens: 4, values: 3 }), "{error}");
        let error = evaluation.add(WindowLogits { model: &[0.0; 20], reference: Some(&[0.0; 16]) }).unwrap_err();
        assert!(matches!(error, EvaluationError::LogitsShape { .. }), "{error}");
    }

    #[test]
    fn nan_logits_are_named_by_window_and_token() {
        let tokens = [1; 8];
        let windows = windows(8, 4, None).unwrap();
        let mut evaluation = LogitsEvaluation::new(&tokens, &windows);
        evaluation.add(WindowLogits { model: &[0.0; 20], reference: None }).unwrap();
        let mut broken = [0.0; 20];
        broken[7] = f32::NAN;
        evaluation.add(WindowLogits { model: &broken, reference: None }).unwrap();
        let error = evaluation.finish().unwrap_err();
        assert!(matches!(error, EvaluationError::NotANumberElsewhere { at: 1, token: 2 }), "{error}");
    }
}
