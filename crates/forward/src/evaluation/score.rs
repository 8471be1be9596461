//! The score of the next token in a row of logits, and the distance from another model's row. Rows come in
//! pieces of the vocabulary, so that they never exist whole.

use super::changed::Prediction;
use kvant_numeric::linalg::{exp, sum_of_exponentials};
use kvant_numeric::simd::{Isa, Loop, dispatch};

/// A running softmax.
#[derive(Clone, Copy, Debug)]
pub(super) struct Score {
    largest: f64,
    /// Of `e^(z - largest)`.
    sum: f64,
    /// The logit of the token that follows.
    target: f64,
    /// The largest logit's token.
    best: usize,
}

impl Default for Score {
    fn default() -> Score {
        Score { largest: f64::NEG_INFINITY, sum: 0.0, target: f64::NAN, best: 0 }
    }
}

impl Score {
    /// Takes in the logits of the tokens from `start` on.
    pub(super) fn add(&mut self, isa: Isa, logits: &[f32], start: usize, target: usize) {
        let (largest, sum) = sum_of_exponentials(isa, logits);
        let (largest, sum) = (f64::from(largest), f64::from(sum));
        if largest > self.largest || self.sum == 0.0 {
            self.best = start + logits.iter().position(|z| f64::from(*z) == largest).unwrap_or(0);
        }
        let joint = self.largest.max(largest);
        self.sum = self.sum * (self.largest - joint).exp() + sum * (largest - joint).exp();
        self.largest = joint;
        if let Some(logit) = target.checked_sub(start).and_then(|at| logits.get(at)) {
            self.target = f64::from(*logit);
        }
    }

    /// `ln p(target)`.
    pub(super) fn log_likelihood(&self) -> f64 {
        self.target - self.log_sum()
    }

    /// The likeliest token, and how likely it and the token that follows are.
    pub(super) fn prediction(&self) -> Prediction {
        let (likeliest, expected) = (self.largest - self.log_sum(), self.log_likelihood());
        Prediction { token: self.best as u32, probability: likeliest.exp(), expected: expected.exp() }
    }

    /// The likeliest token.
    pub(super) fn best(&self) -> usize {
        self.best
    }

    /// `ln` of the sum of `e^z`.
    fn log_sum(&self) -> f64 {
        self.largest + self.sum.ln()
    }
}

/// Two models' scores of one token, and the running divergence of their distributions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScorePair {
    pub(super) model: Score,
    pub(super) reference: Score,
    /// The sum of `e^(r - largest r) (r - z)` over the vocabulary, `r` being the reference's logits.
    difference: f64,
}

impl ScorePair {
    /// Takes in both models' logits of the tokens from `start` on.
    pub(super) fn add(&mut self, isa: Isa, (model, reference): (&[f32], &[f32]), start: usize, target: usize) {
        let before = self.reference.largest;
        self.model.add(isa, model, start, target);
        self.reference.add(isa, reference, start, target);
        let largest = self.reference.largest;
        let new = dispatch(isa, Difference { model, reference, largest: largest as f32 });
        let kept = if before == f64::NEG_INFINITY { 0.0 } else { self.difference * (before - largest).exp() };
        self.difference = kept + new;
    }

    /// The Kullback-Leibler divergence of the model from the reference, in nats:
    /// `sum p_r (ln p_r - ln p) = sum p_r (r - z) - ln sum e^r + ln sum e^z`. Rounding may leave it a little below zero,
    /// which it cannot be.
    pub(super) fn divergence(&self) -> f64 {
        let mean = self.difference / self.reference.sum;
        (mean - self.reference.log_sum() + self.model.log_sum()).max(0.0)
    }

    /// The log-likelihood lost relative to the reference: `ln p_r(target) - ln p(target)`.
    pub(super) fn loss(&self) -> f64 {
        self.reference.log_likelihood() - self.model.log_likelihood()
    }

    /// Returns whether both models predict the same token.
    pub(super) fn agrees(&self) -> bool {
        self.model.best == self.reference.best
    }
}

struct Difference<'a> {
    model: &'a [f32],
    reference: &'a [f32],
    largest: f32,
}

impl Loop for Difference<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        const LANES: usize = 16;
        let mut sum = 0.0;
        // Sums of f32 are kept short, so that small differences are not lost.
        for (model, reference) in self.model.chunks(64 * LANES).zip(self.reference.chunks(64 * LANES)) {
            let mut lanes = [0.0f32; LANES];
            for (model, reference) in model.chunks(LANES).zip(reference.chunks(LANES)) {
                for ((lane, z), r) in lanes.iter_mut().zip(model).zip(reference) {
                    *lane += exp(*r - self.largest) * (*r - *z);
                }
            }
            sum += lanes.iter().map(|lane| f64::from(*lane)).sum::<f64>();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(count: usize, seed: f32) -> Vec<f32> {
        (0..count).map(|i| ((i as f32 + seed) * 12.9898).sin() * 6.0).collect()
    }

    fn probabilities(logits: &[f32]) -> Vec<f64> {
        let sum: f64 = logits.iter().map(|z| f64::from(*z).exp()).sum();
        logits.iter().map(|z| f64::from(*z).exp() / sum).collect()
    }

    #[test]
    fn piecewise_scores_and_divergence_match_their_formulas() {
        let (model, reference, target) = (logits(5000, 0.1), logits(5000, 0.13), 3210);
        let (p, q) = (probabilities(&reference), probabilities(&model));
        let divergence: f64 = p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum();
        for isa in Isa::available() {
            for piece in [5000, 777, 1] {
                let mut pair = ScorePair::default();
                for start in (0..5000).step_by(piece) {
                    let range = start..(start + piece).min(5000);
                    pair.add(isa, (&model[range.clone()], &reference[range]), start, target);
                }
                assert!((pair.model.log_likelihood() - q[target].ln()).abs() < 1e-5);
                assert!((pair.divergence() - divergence).abs() < 1e-5 * divergence, "{isa:?} {piece}");
                let best = |p: &[f64]| p.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|(i, _)| i);
                assert_eq!(pair.agrees(), best(&p) == best(&q));
            }
        }
    }

    #[test]
    fn equal_models_have_no_divergence() {
        let row = logits(333, 2.0);
        let mut pair = ScorePair::default();
        pair.add(Isa::best(), (&row, &row), 0, 5);
        assert!(pair.agrees() && pair.divergence() < 1e-6);
    }

    #[test]
    fn nan_logits_give_nan_likelihood() {
        let mut score = Score::default();
        score.add(Isa::best(), &[1.0, f32::NAN], 0, 1);
        assert!(score.log_likelihood().is_nan());
    }
}
