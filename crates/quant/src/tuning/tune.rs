//! Distillation of a block into its scales and norms: at the codes that a rounding has chosen, or with the weights through their rounding,
//! Adam follows the gradient of the difference between the block's output and the float model's.
//!
//! Source: Chen et al., EfficientQAT, arXiv 2407.11062: weights with scales are its block-wise training of all parameters (Block-AP), scales
//! alone what its second phase trains. Norms are trained in Li et al., Norm Tweaking, arXiv 2309.02784.

use crate::options::{self, OptionError, OptionRow, Values};
use crate::registry::AlgorithmRow;
use crate::rounding::TuningRates;
use serde::{Deserialize, Serialize};

/// The name.
pub(super) const NAME: &str = "tune";

/// How often the block's loss is measured, about.
const MEASUREMENTS: u32 = 8;

/// The settings. Rates are those of the first step, and fall evenly to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Tune {
    /// Steps, each with the gradient of one batch.
    pub iterations: u32,
    /// How far a step moves scales, as a share of themselves.
    pub scales: f32,
    /// How far a step moves the weights of norms, as a share of their root mean square.
    pub norms: f32,
    /// Whether weights learn too, through their rounding.
    pub weights: bool,
    /// How far a step moves such weights, in distances of the grid.
    #[serde(rename = "weight-rate")]
    pub weight_rate: f32,
    /// Decides the order of batches.
    pub seed: u32,
}

impl Tune {
    /// 200 steps at fixed codes.
    pub const DEFAULTS: Tune =
        Tune { iterations: 200, scales: 0.002, norms: 0.002, weights: false, weight_rate: 0.005, seed: 42 };

    /// The rate of step `index` as a share of the first one's.
    pub fn share(&self, index: u32) -> f32 {
        1.0 - index as f32 / self.iterations.max(1) as f32
    }

    /// The rates of a weight at step `index`.
    pub fn rates(&self, index: u32) -> TuningRates {
        let share = self.share(index);
        TuningRates { scales: self.scales * share, weights: self.weight_rate * share }
    }

    /// The loss of the block is measured after so many steps each, and the best parameters are kept.
    pub fn period(&self) -> u32 {
        self.iterations.div_ceil(MEASUREMENTS).max(1)
    }
}

const OPTIONS: &[OptionRow] = &[
    OptionRow {
        name: "iterations",
        values: Values::COUNT,
        about: "steps for each block, each on one batch of at most 2048 tokens",
    },
    OptionRow {
        name: "scales",
        values: Values::SHARE,
        about: "how far the first step moves scales, as a share of themselves; later ones move less",
    },
    OptionRow {
        name: "norms",
        values: Values::SHARE,
        about: "the same for weights of norms, as a share of their root mean square; 0 leaves them",
    },
    OptionRow {
        name: "weights",
        values: Values::SWITCH,
        about: "on: weights learn through their rounding, and codes change (EfficientQAT's Block-AP)",
    },
    OptionRow {
        name: "weight-rate",
        values: Values::RATE,
        about: "how far the first step moves such weights, in distances of the grid",
    },
    OptionRow { name: "seed", values: Values::SEED, about: "decides the order of batches" },
];

/// The row.
pub(super) fn row() -> AlgorithmRow<Tune> {
    let about = "trains scales and norms at fixed codes, or weights too, towards the output of the float block";
    let row = AlgorithmRow::new(NAME, about, OPTIONS, Tune::DEFAULTS, |given| {
        let settings: Tune = options::read(NAME, OPTIONS, &Tune::DEFAULTS, given)?;
        let idle = |reason, remedy| Err(OptionError::Idle { algorithm: NAME, reason, remedy });
        match settings.weights {
            false if settings.scales == 0.0 && settings.norms == 0.0 => {
                idle("has nothing to learn with scales=0 and norms=0", "leave one of them out, or give weights=on")
            }
            false if settings.weight_rate != Tune::DEFAULTS.weight_rate => {
                idle("does not use weight-rate without weights=on", "give weights=on, or leave weight-rate out")
            }
            _ => Ok(settings),
        }
    });
    row.with_paper("arXiv 2407.11062")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_without_effect_are_refused() {
        let read = |given: &[(&str, &str)]| row().read(given);
        let message = |given: &[(&str, &str)]| read(given).unwrap_err().to_string();
        assert_eq!(
            message(&[("scales", "0"), ("norms", "0")]),
            "`tune` has nothing to learn with scales=0 and norms=0"
        );
        assert_eq!(message(&[("weight-rate", "0.01")]), "`tune` does not use weight-rate without weights=on");
        assert!(read(&[("scales", "0"), ("norms", "0"), ("weights", "on"), ("weight-rate", "0.01")]).is_ok());
    }

    #[test]
    fn rates_fall_to_nothing_and_losses_are_measured_at_even_steps() {
        let settings = Tune { iterations: 40, ..Tune::DEFAULTS };
        assert_eq!((settings.share(0), settings.share(20), settings.share(40)), (1.0, 0.5, 0.0));
        assert_eq!(settings.rates(20).scales, settings.scales / 2.0);
        assert_eq!(settings.period(), 5);
        assert_eq!(Tune { iterations: 3, ..settings }.period(), 1);
    }
}
