//! The tokens whose prediction differs most from the reference's.

use super::score::ScorePair;
use super::statistics::TokenPlace;
use super::windows::Window;

/// The most tokens that are kept.
const MOST: usize = 20;
/// The most tokens before one that are kept with it.
const CONTEXT: usize = 12;

/// A token whose prediction differs from the reference's.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedToken {
    /// Its window.
    pub window: usize,
    /// Its number in the window.
    pub position: usize,
    /// The last tokens before it, at most twelve.
    pub context: Vec<u32>,
    /// The token.
    pub expected: u32,
    /// The prediction of the model.
    pub model: Prediction,
    /// That of the reference.
    pub reference: Prediction,
    /// The Kullback-Leibler divergence of the model's distribution from the reference's, in nats.
    pub kl: f64,
}

/// The prediction of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The likeliest token.
    pub token: u32,
    /// Its probability.
    pub probability: f64,
    /// The probability of the token that follows.
    pub expected: f64,
}

/// The tokens of the greatest divergence, the greatest first; of equal ones the first in the text. Divergences that are no numbers are left
/// out. Besides the pairs, which exist anyway, memory does not grow with the text.
pub(super) fn most_changed(
    scored: &[(TokenPlace, ScorePair)],
    tokens: &[u32],
    windows: &[Window],
) -> Vec<ChangedToken> {
    let mut most: Vec<(f64, usize)> = Vec::with_capacity(MOST + 1);
    for (index, (_, pair)) in scored.iter().enumerate() {
        let kl = pair.divergence();
        if kl.is_nan() || (most.len() == MOST && most.last().is_some_and(|(least, _)| kl <= *least)) {
            continue;
        }
        let at = most.partition_point(|(other, _)| *other >= kl);
        most.insert(at, (kl, index));
        most.truncate(MOST);
    }
    let found = most.into_iter().filter_map(|(kl, index)| {
        let (place, pair) = &scored[index];
        let window = &tokens[windows.get(place.window)?.tokens.clone()];
        let before = place.token - place.context.min(CONTEXT).min(place.token);
        Some(ChangedToken {
            window: place.window,
            position: place.token,
            context: window[before..place.token].to_vec(),
            expected: *window.get(place.token)?,
            model: pair.model.prediction(),
            reference: pair.reference.prediction(),
            kl,
        })
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::super::windows::windows;
    use super::*;
    use kvant_numeric::simd::Isa;

    #[test]
    fn greatest_divergences_come_first_with_the_tokens_before_them() {
        let tokens: Vec<u32> = (0..64).map(|token| token % 4).collect();
        let windows = windows(tokens.len(), 32, None).unwrap();
        let mut scored = Vec::new();
        for (window, range) in windows.iter().enumerate() {
            for token in 1..32 {
                let target = tokens[range.tokens.start + token] as usize;
                // The further into the text, the less the model knows of what the reference is sure of.
                let distance = (window * 32 + token) as f32 / 16.0;
                let mut pair = ScorePair::default();
                pair.add(Isa::best(), (&[0.0, 0.0, 0.0, distance], &[distance, 0.0, 0.0, 0.0]), 0, target);
                scored.push((TokenPlace { window, token, context: token }, pair));
            }
        }
        let found = most_changed(&scored, &tokens, &windows);
        let places: Vec<(usize, usize)> = found.iter().map(|token| (token.window, token.position)).collect();
        assert_eq!(places, (0..MOST).map(|rank| (1, 31 - rank)).collect::<Vec<_>>());
        let last = &found[0];
        assert_eq!((last.expected, last.context.as_slice()), (3, &[3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2][..]));
        assert_eq!((last.model.token, last.reference.token), (3, 0));
        let sure = f64::from(63.0f32 / 16.0).exp();
        let likely = sure / (sure + 3.0);
        assert!((last.model.probability - likely).abs() < 1e-6 && (last.model.expected - likely).abs() < 1e-6);
        assert!((last.reference.expected - 1.0 / (sure + 3.0)).abs() < 1e-6);
        assert!(found.iter().zip(&found[1..]).all(|(more, less)| more.kl >= less.kl));
        let short = most_changed(&scored[..3], &tokens, &windows);
        assert_eq!((short.len(), short[0].context.as_slice()), (3, &[0, 1, 2][..]), "no more than there is before");
    }
}
