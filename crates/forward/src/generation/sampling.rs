//! The choice of the next token from logits: the likeliest, or one at random. The same logits, settings and seed give the same token.

use super::GenerationError;
use kvant_quant::random::{SplitMix64, mix};
use std::cmp::Ordering;

/// How the next token is chosen. Settings apply in the order of transformers: temperature, the `k` likeliest, the likeliest with
/// probability `p` together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// The divisor of logits; 0 chooses the likeliest token always.
    pub temperature: f64,
    /// The number of likeliest tokens to choose from.
    pub top_k: Option<usize>,
    /// The probability that the likeliest tokens to choose from have together.
    pub top_p: Option<f64>,
    /// The seed of random numbers.
    pub seed: u64,
}

impl Sampling {
    /// The likeliest token always.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: None, top_p: None, seed: 0 };

    /// Refuses settings out of their range.
    ///
    /// # Errors
    ///
    /// [`GenerationError::Setting`].
    pub fn check(&self) -> Result<(), GenerationError> {
        let wrong = |setting, value: String, allowed| Err(GenerationError::Setting { setting, value, allowed });
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return wrong("‹temperature›", self.temperature.to_string(), "0 or more");
        }
        if self.top_k == Some(0) {
            return wrong("‹top-k›", "0".to_owned(), "at least 1");
        }
        match self.top_p {
            Some(p) if !(p > 0.0 && p <= 1.0) => wrong("‹top-p›", p.to_string(), "above 0 and at most 1"),
            _ => Ok(()),
        }
    }
}

/// The tokens of one sequence, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Sampler {
    sampling: Sampling,
    random: SplitMix64,
}

impl Sampler {
    /// The sampler of a sequence. Sequences with the same prompt have different `copy` numbers, and so draw different random numbers.
    pub(super) fn new(sampling: Sampling, copy: usize) -> Sampler {
        Sampler { sampling, random: SplitMix64::new(mix(sampling.seed, [copy as u64, 0, 0])) }
    }

    /// The next token; `None` where a logit is NaN, or none is finite.
    pub(super) fn choose(&mut self, logits: &[f32]) -> Option<u32> {
        let likeliest = likeliest(logits)?;
        if self.sampling.temperature == 0.0 {
            return u32::try_from(likeliest).ok();
        }
        let largest = f64::from(logits[likeliest]);
        let weight = |logit: f32| ((f64::from(logit) - largest) / self.sampling.temperature).exp();
        let mut candidates: Vec<(usize, f64)> =
            logits.iter().enumerate().map(|(token, logit)| (token, weight(*logit))).collect();
        let order = |a: &(usize, f64), b: &(usize, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        candidates.sort_unstable_by(order);
        if let Some(k) = self.sampling.top_k.filter(|k| *k < candidates.len()) {
            // Tokens as likely as the last of them count too.
            let least = candidates[k - 1].1;
            candidates.truncate(candidates.partition_point(|(_, weight)| *weight >= least));
        }
        let total = |candidates: &[(usize, f64)]| candidates.iter().map(|(_, weight)| weight).sum::<f64>();
        if let Some(p) = self.sampling.top_p {
            let (mut reached, share) = (0.0, p * total(&candidates));
            let enough = candidates.iter().position(|(_, weight)| {
                reached += weight;
                reached >= share
            });
            candidates.truncate(enough.map_or(candidates.len(), |last| last + 1));
        }
        let drawn = self.random.uniform() * total(&candidates);
        let mut reached = 0.0;
        let chosen = candidates.iter().find(|(_, weight)| {
            reached += weight;
            reached > drawn
        });
        // Rounding may leave the last sum below what was drawn.
        let chosen = chosen.or(candidates.last()).map_or(likeliest, |(token, _)| *token);
        u32::try_from(chosen).ok()
    }
}

/// The first of the largest logits.
fn likeliest(logits: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (token, logit) in logits.iter().enumerate() {
        match best.map(|(_, best)| logit.partial_cmp(&best)) {
            None if !logit.is_nan() => best = Some((token, *logit)),
            Some(Some(Ordering::Greater)) => best = Some((token, *logit)),
            Some(Some(_)) => {}
            None | Some(None) => return None,
        }
    }
    best.filter(|(_, logit)| logit.is_finite()).map(|(token, _)| token)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ln` of 0.1, 0.4, 0.2 and 0.3, and a fifth that nothing chooses.
    fn logits() -> Vec<f32> {
        [0.1f32, 0.4, 0.2, 0.3].map(f32::ln).into_iter().chain([f32::NEG_INFINITY]).collect()
    }

    fn shares(sampling: Sampling) -> [f64; 5] {
        let mut sampler = Sampler::new(sampling, 0);
        let mut counts = [0.0; 5];
        (0..20_000).for_each(|_| counts[sampler.choose(&logits()).unwrap() as usize] += 1.0 / 20_000.0);
        counts
    }

    fn assert_shares(found: [f64; 5], expected: [f64; 5]) {
        let close = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 0.015 && (*a > 0.0) == (b > 0.0));
        assert!(close, "{found:?} {expected:?}");
    }

    #[test]
    fn tokens_are_drawn_by_their_probability() {
        let plain = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        assert_shares(shares(plain), [0.1, 0.4, 0.2, 0.3, 0.0]);
        let sum = 0.01 + 0.16 + 0.04 + 0.09;
        let cold = Sampling { temperature: 0.5, ..plain };
        assert_shares(shares(cold), [0.01 / sum, 0.16 / sum, 0.04 / sum, 0.09 / sum, 0.0]);
        assert_shares(shares(Sampling { top_k: Some(2), ..plain }), [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0, 0.0]);
        assert_shares(shares(Sampling { top_p: Some(0.75), ..plain }), [0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0, 0.0]);
        assert_shares(shares(Sampling { top_p: Some(0.3), ..plain }), [0.0, 1.0, 0.0, 0.0, 0.0]);
        assert_shares(shares(Sampling { top_k: Some(9), top_p: Some(1.0), ..plain }), [0.1, 0.4, 0.2, 0.3, 0.0]);
    }

    #[test]
    fn greedy_choice_is_the_first_of_the_likeliest() {
        let mut greedy = Sampler::new(Sampling::GREEDY, 0);
        assert_eq!(greedy.choose(&[1.0, 3.0, 3.0, 2.0]), Some(1));
        assert_eq!(greedy.choose(&[1.0, f32::NAN]), None);
        assert_eq!(greedy.choose(&[f32::NEG_INFINITY; 2]), None);
    }

    #[test]
    fn seeds_and_copies_decide_the_draws() {
        let draw = |seed, copy| {
            let mut sampler = Sampler::new(Sampling { temperature: 1.0, seed, ..Sampling::GREEDY }, copy);
            (0..50).map(|_| sampler.choose(&logits()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert!(draw(1, 0) != draw(2, 0) && draw(1, 0) != draw(1, 1));
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let refused = |sampling: Sampling| matches!(sampling.check(), Err(GenerationError::Setting { .. }));
        for temperature in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(refused(Sampling { temperature, ..Sampling::GREEDY }));
        }
        assert!(refused(Sampling { top_k: Some(0), ..Sampling::GREEDY }));
        for p in [0.0, -0.1, 1.1, f64::NAN] {
            assert!(refused(Sampling { top_p: Some(p), ..Sampling::GREEDY }));
        }
        assert!(Sampling { temperature: 2.0, top_k: Some(1), top_p: Some(1.0), seed: 3 }.check().is_ok());
    }
}
