//! Comparison of a model with its source.

use super::changed::ChangedToken;
use super::score::ScorePair;
use super::statistics::{Mean, TokenPlace};

/// Two models on the same text, token by token and block by block.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The reference's perplexity; not a number where no token is scored.
    pub reference_perplexity: f64,
    /// The model's perplexity over the reference's, and its standard error, in which the losses that both have in common cancel out.
    pub perplexity_ratio: Mean,
    /// The mean over tokens of the Kullback-Leibler divergence of the model's distribution from the reference's, in nats.
    pub kl_mean: Mean,
    /// The value that 99 % of the tokens do not exceed, interpolated between neighbours.
    pub kl_p99: f64,
    /// The share of tokens for which both models' likeliest token is the same.
    pub top1_agreement: f64,
    /// The standard error of that share over windows.
    pub top1_agreement_error: f64,
    /// The residual stream after each block: `10 log10(sum r^2 / sum (r - x)^2)` in decibels, `r` being the reference's.
    /// Errors of earlier blocks are in it. Infinite where there is none.
    pub blocks: Vec<f64>,
    /// The tokens of the greatest divergence, the greatest first, at most twenty; empty where none are looked for.
    pub changed: Vec<ChangedToken>,
}

impl Comparison {
    /// Of the pairs of predicting rows, each of which a token follows.
    pub(super) fn new(
        reference_perplexity: f64,
        pairs: &[(TokenPlace, ScorePair)],
        errors: &[BlockErrors],
    ) -> Comparison {
        Comparison::of_scored(reference_perplexity, pairs, pairs, errors)
    }

    /// Of the pairs of all predicting rows, and those of rows that a token follows.
    pub(super) fn of_scored(
        reference_perplexity: f64,
        pairs: &[(TokenPlace, ScorePair)],
        scored: &[(TokenPlace, ScorePair)],
        errors: &[BlockErrors],
    ) -> Comparison {
        let mut divergences: Vec<f64> = pairs.iter().map(|(_, pair)| pair.divergence()).collect();
        let agreement = Mean::of(pairs.iter().map(|(place, pair)| (*place, f64::from(u8::from(pair.agrees())))));
        Comparison {
            reference_perplexity,
            perplexity_ratio: Mean::of(scored.iter().map(|(place, pair)| (*place, pair.loss()))).exp(),
            kl_mean: Mean::of(pairs.iter().map(|(place, _)| *place).zip(divergences.iter().copied())),
            kl_p99: quantile(&mut divergences, 0.99),
            top1_agreement: agreement.value,
            top1_agreement_error: agreement.error,
            blocks: errors.iter().map(BlockErrors::decibels).collect(),
            changed: Vec::new(),
        }
    }
}

/// The value at a share of the sorted values, interpolated linearly.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return f64::NAN };
    let place = share * last as f64;
    let (below, above) = (values[place.floor() as usize], values[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// Energies of a block's output and of its error.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockErrors {
    signal: f64,
    noise: f64,
}

impl BlockErrors {
    /// Takes in some elements of the model and the reference.
    pub(super) fn add(&mut self, model: &[f32], reference: &[f32]) {
        for (x, r) in model.iter().zip(reference) {
            let (x, r) = (f64::from(*x), f64::from(*r));
            self.signal += r * r;
            self.noise += (r - x) * (r - x);
        }
    }

    pub(super) fn decibels(&self) -> f64 {
        10.0 * (self.signal / self.noise).log10()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_interpolated() {
        let mut values = [4.0, 1.0, 2.0, 3.0, 5.0];
        assert_eq!(quantile(&mut values, 0.5), 3.0);
        assert!((quantile(&mut values, 0.99) - 4.96).abs() < 1e-12);
        assert_eq!(quantile(&mut [7.0], 0.99), 7.0);
    }

    #[test]
    fn tenth_of_the_amplitude_is_twenty_decibels() {
        let mut errors = BlockErrors::default();
        errors.add(&[1.1, -2.2], &[1.0, -2.0]);
        assert!((errors.decibels() - 20.0).abs() < 1e-5);
        let mut none = BlockErrors::default();
        none.add(&[1.0], &[1.0]);
        assert_eq!(none.decibels(), f64::INFINITY);
    }
}
