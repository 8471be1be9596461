//! Means over the tokens of a text, how uncertain they are, and how they depend on the tokens before.

use super::score::ScorePair;

/// Where the first range of contexts ends; each further one is as long as all before it.
const FIRST_RANGE: usize = 256;

/// A mean over tokens, and how uncertain it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mean {
    /// The mean.
    pub value: f64,
    /// Its standard error over windows, because the tokens of one are correlated; not a number for less than two windows. With `e_w` the sum
    /// over a window of the differences from the mean, `G` windows and `N` tokens: `sqrt(G / (G - 1) sum e_w^2) / N`.
    pub error: f64,
}

impl Mean {
    /// Of a value for each token, in the order of windows.
    pub(super) fn of(sample: impl IntoIterator<Item = (TokenPlace, f64)>) -> Mean {
        let mut windows: Vec<WindowSum> = Vec::new();
        for (place, value) in sample {
            match windows.last_mut().filter(|last| last.window == place.window) {
                Some(last) => {
                    last.sum += value;
                    last.tokens += 1.0;
                }
                None => windows.push(WindowSum { window: place.window, sum: value, tokens: 1.0 }),
            }
        }
        let (sum, tokens) = windows.iter().fold((0.0, 0.0), |(sum, tokens), w| (sum + w.sum, tokens + w.tokens));
        let value = sum / tokens;
        let squares: f64 = windows.iter().map(|w| (w.sum - value * w.tokens).powi(2)).sum();
        let count = windows.len() as f64;
        let error = if windows.len() < 2 { f64::NAN } else { (count / (count - 1.0) * squares).sqrt() / tokens };
        Mean { value, error }
    }

    /// Of independent values, each a window by itself.
    pub fn of_independent(values: impl IntoIterator<Item = f64>) -> Mean {
        let place = |window| TokenPlace { window, token: 0, context: 0 };
        Mean::of(values.into_iter().enumerate().map(|(window, value)| (place(window), value)))
    }

    /// The exponential of a mean: errors of a small one are its own, times the value.
    pub(super) fn exp(self) -> Mean {
        let value = self.value.exp();
        Mean { value, error: value * self.error }
    }
}

struct WindowSum {
    window: usize,
    sum: f64,
    tokens: f64,
}

/// The place of a token that is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenPlace {
    /// Its window.
    pub(super) window: usize,
    /// Its number in the window, counted with all that the model reads there.
    pub(super) token: usize,
    /// The tokens before it: in an encoder-decoder those that the decoder reads.
    pub(super) context: usize,
}

/// The tokens that are predicted from so many tokens before them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ContextRange {
    /// The least number of tokens before.
    pub from: usize,
    /// The greatest.
    pub to: usize,
    /// Tokens of the text that are.
    pub tokens: usize,
    /// The mean of `-ln p` over them, in nats.
    pub loss: Mean,
    /// What there is beside a reference.
    pub comparison: Option<RangeComparison>,
}

/// The tokens of a range, of two models.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RangeComparison {
    /// The mean of the reference's `-ln p`, in nats.
    pub reference_loss: Mean,
    /// The mean Kullback-Leibler divergence from the reference, in nats.
    pub kl: Mean,
}

/// The scored tokens by the number of tokens before them: fewer than 256, then up to each power of two. `scores` are log-likelihoods.
pub(super) fn ranges_of_scores(scores: &[(TokenPlace, f64)]) -> Vec<ContextRange> {
    ranges(scores, |found| ContextRange {
        loss: Mean::of(found.iter().map(|(place, score)| (*place, -score))),
        ..EMPTY
    })
}

/// The same beside a reference.
pub(super) fn ranges_of_pairs(scored: &[(TokenPlace, ScorePair)]) -> Vec<ContextRange> {
    ranges(scored, |found| {
        let mean = |of: fn(&ScorePair) -> f64| Mean::of(found.iter().map(|(place, pair)| (*place, of(pair))));
        ContextRange {
            loss: mean(|pair| -pair.model.log_likelihood()),
            comparison: Some(RangeComparison {
                reference_loss: mean(|pair| -pair.reference.log_likelihood()),
                kl: mean(ScorePair::divergence),
            }),
            ..EMPTY
        }
    })
}

const EMPTY: ContextRange =
    ContextRange { from: 0, to: 0, tokens: 0, loss: Mean { value: f64::NAN, error: f64::NAN }, comparison: None };

fn ranges<T: Copy>(all: &[(TokenPlace, T)], range: impl Fn(&[(TokenPlace, T)]) -> ContextRange) -> Vec<ContextRange> {
    let longest = all.iter().map(|(place, _)| place.context).max();
    let mut found = Vec::new();
    let (mut from, mut end) = (0, FIRST_RANGE);
    while longest.is_some_and(|longest| longest >= from) {
        let inside = all.iter().filter(|(place, _)| (from..end).contains(&place.context));
        let inside: Vec<(TokenPlace, T)> = inside.copied().collect();
        if !inside.is_empty() {
            found.push(ContextRange { from, to: end - 1, tokens: inside.len(), ..range(&inside) });
        }
        (from, end) = (end, end.saturating_mul(2));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(window: usize, context: usize) -> TokenPlace {
        TokenPlace { window, token: context, context }
    }

    #[test]
    fn error_of_windows_of_one_token_is_that_of_independent_values() {
        let mean = Mean::of_independent([1.0, 2.0, 3.0, 4.0]);
        assert_eq!(mean.value, 2.5);
        assert!((mean.error - (5.0f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12);
        assert!((mean.exp().error - mean.error * 2.5f64.exp()).abs() < 1e-12);
    }

    #[test]
    fn error_does_not_shrink_where_tokens_of_a_window_repeat_one_value() {
        let of = |repeated: usize| {
            let values = [1.0, 2.0, 3.0, 4.0].into_iter().enumerate();
            Mean::of(values.flat_map(|(window, value)| (0..repeated).map(move |token| (at(window, token + 1), value))))
        };
        assert!((of(1).error - of(50).error).abs() < 1e-12);
        assert_eq!(of(50).value, 2.5);
    }

    #[test]
    fn error_of_a_single_window_is_unknown() {
        assert!(Mean::of([(at(0, 1), 1.0), (at(0, 2), 5.0)]).error.is_nan());
        assert!(Mean::of([]).value.is_nan());
    }

    #[test]
    fn ranges_double_from_256_on_and_hold_each_token_once() {
        let places = (0..2).flat_map(|window| (1..1100).map(move |token| at(window, token)));
        let scores: Vec<(TokenPlace, f64)> = places.map(|place| (place, -(place.context as f64))).collect();
        let found = ranges_of_scores(&scores);
        let bounds: Vec<(usize, usize, usize)> =
            found.iter().map(|range| (range.from, range.to, range.tokens)).collect();
        assert_eq!(bounds, [(0, 255, 2 * 255), (256, 511, 2 * 256), (512, 1023, 2 * 512), (1024, 2047, 2 * 76)]);
        assert_eq!(found[0].loss, Mean { value: 128.0, error: 0.0 });
        assert_eq!(found[1].loss.value, (256.0 + 511.0) / 2.0);
        assert!(ranges_of_scores(&[]).is_empty());
        let late = ranges_of_scores(&[(at(0, 700), -2.0)]);
        assert_eq!((late.len(), late[0].from, late[0].tokens), (1, 512, 1));
    }
}
