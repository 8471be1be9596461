//! Perplexity by the field's convention: consecutive windows that do not overlap, a shorter tail dropped; in each window
//! every token but the first is scored, given those before it.

use super::EvaluationError;
use crate::forward::Decoder;
use crate::forward::ops::Ops;
use std::time::Instant;

/// The longest window that is chosen unasked.
const LONGEST_DEFAULT: usize = 2048;
/// Tokens whose activations are held at a time.
const TOKENS_AT_A_TIME: usize = 4096;

/// How well a model predicts a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// `exp(-mean(ln p))` over the scored tokens.
    pub perplexity: f64,
    /// Scored tokens.
    pub tokens: usize,
    /// Windows.
    pub windows: usize,
    /// Tokens of a window.
    pub window: usize,
    /// Time taken, without tokenization.
    pub seconds: f64,
}

impl Perplexity {
    /// Tokens that passed the model per second, the first of each window included.
    pub fn tokens_per_second(&self) -> f64 {
        (self.windows * self.window) as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// The window for a model: the smaller of 2048 and its longest context.
pub fn default_window(decoder: &Decoder<'_>) -> usize {
    decoder.longest().map_or(LONGEST_DEFAULT, |longest| longest.min(LONGEST_DEFAULT))
}

/// The perplexity of a model on `tokens`, in windows of `window`. `watch` is told of windows done and windows in all.
///
/// # Errors
///
/// Windows that predict nothing or are not filled, tokens that the model does not know, likelihoods that are NaN.
pub fn perplexity(
    decoder: &Decoder<'_>,
    ops: &dyn Ops,
    tokens: &[u32],
    window: usize,
    mut watch: impl FnMut(usize, usize),
) -> Result<Perplexity, EvaluationError> {
    if window < 2 {
        return Err(EvaluationError::Window { window });
    }
    let windows = tokens.len() / window;
    if windows == 0 {
        return Err(EvaluationError::TooShort { tokens: tokens.len(), window });
    }
    let (start, together) = (Instant::now(), (TOKENS_AT_A_TIME / window).max(1));
    let mut sum = 0.0;
    for first in (0..windows).step_by(together) {
        let last = (first + together).min(windows);
        sum += log_likelihood(decoder, ops, &tokens[first * window..last * window], (first, window))?;
        watch(last, windows);
    }
    let scored = windows * (window - 1);
    let perplexity = (-sum / scored as f64).exp();
    Ok(Perplexity { perplexity, tokens: scored, windows, window, seconds: start.elapsed().as_secs_f64() })
}

/// `ln p` of some windows, the first of which is number `first`.
fn log_likelihood(
    decoder: &Decoder<'_>,
    ops: &dyn Ops,
    tokens: &[u32],
    (first, window): (usize, usize),
) -> Result<f64, EvaluationError> {
    let scores = decoder.log_likelihoods(ops, tokens, window)?;
    match scores.iter().position(|score| score.is_nan()) {
        Some(at) => {
            let (at, token) = (first + at / (window - 1), at % (window - 1) + 1);
            Err(EvaluationError::NotANumber { at, token })
        }
        None => Ok(scores.iter().sum()),
    }
}
