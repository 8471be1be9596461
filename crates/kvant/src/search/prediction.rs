//! Predicting the loss of a mix from those of its groups.
//!
//! Divergences of small independent errors add up: that of a mix is about the sum of those of its groups alone. How far the sum is off is
//! known for every option, from the mix that has it everywhere: for groups `g` with options `o(g)`,
//! `KL ~ sum KL_g(o(g)) * KL(o everywhere) / sum KL_h(o)`. The share of tokens that change grows as the root of the divergence, so that
//! squares of it add up.

use super::compared::Compared;
use super::kept::MeasuredMix;
use super::measured::Singles;
use kvant_checkpoint::sensitivity::Mixture;
use kvant_quant::allocation::Choice;

/// What is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// The divergence.
    Kl,
    /// The square of the share of tokens whose likeliest token changes.
    Changes,
}

impl Loss {
    pub(super) fn of(self, found: MeasuredMix) -> f64 {
        match self {
            Loss::Kl => found.kl,
            // Of an estimate the divergence, which grows as this does.
            Loss::Changes => found.top1_agreement.map_or(found.kl, |agreement| (1.0 - agreement).powi(2)),
        }
    }
}

/// The predicted part of every choice of every group in the loss of a mix.
#[derive(Clone, Debug)]
pub(super) struct Prediction {
    parts: Vec<Vec<f64>>,
}

impl Prediction {
    pub(super) fn new(mixture: &Mixture<'_>, singles: &Singles, compared: &[Compared], loss: Loss) -> Prediction {
        let factor = |option: usize| {
            let Some(uniform) = compared.iter().find(|mix| mix.uniform == Some(option)) else { return 1.0 };
            let parts = singles.iter().zip(&uniform.choices).map(|(single, choice)| loss.of(single[*choice]));
            let sum: f64 = parts.sum();
            let ratio = loss.of(uniform.measured) / sum;
            if ratio.is_finite() && ratio > 0.0 { ratio } else { 1.0 }
        };
        let factors: Vec<f64> = (0..mixture.options().len()).map(factor).collect();
        let of_group = |(group, single): (usize, &Vec<MeasuredMix>)| {
            let choices = mixture.groups()[group].choices.iter().zip(single);
            choices.map(|(choice, found)| loss.of(*found) * factors[choice.option]).collect()
        };
        Prediction { parts: singles.iter().enumerate().map(of_group).collect() }
    }

    /// The predicted loss of a mix.
    pub(super) fn loss(&self, choices: &[usize]) -> f64 {
        self.parts.iter().zip(choices).map(|(parts, choice)| parts[*choice]).sum()
    }

    /// The choices of every group as they are shared out.
    pub(super) fn choices(&self, mixture: &Mixture<'_>) -> Vec<Vec<Choice>> {
        let of_group = |(group, parts): (usize, &Vec<f64>)| {
            let choices = mixture.groups()[group].choices.iter().zip(parts);
            choices.map(|(choice, loss)| Choice { bytes: choice.bytes, loss: *loss }).collect()
        };
        self.parts.iter().enumerate().map(of_group).collect()
    }
}
