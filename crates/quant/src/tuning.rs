//! Learned rounding of a whole block: codes and scales that a rounding has chosen are moved so that the block's output comes nearer to
//! the float model's. The steps on a weight are in [`LatentWeight`](crate::rounding::LatentWeight); who has blocks computes gradients.
//!
//! Source: Cheng et al., Optimize Weight Rounding via Signed Gradient Descent for the Quantization of LLMs, arXiv 2309.05516.

use crate::options::{OptionRow, Values};
use crate::registry::AlgorithmRow;
use serde::{Deserialize, Serialize};

/// The name.
pub const NAME: &str = "autoround";

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AutoRound {
    /// Steps, each with the gradient of one batch.
    pub iterations: u32,
    /// Distances of the grid that codes move by in all steps together, at most: the first step is twice as long as the mean, the last
    /// one nothing.
    pub reach: f32,
    /// The same for scales, as a share of themselves.
    pub scales: f32,
    /// Decides the order of batches.
    pub seed: u32,
}

impl AutoRound {
    /// 200 steps.
    pub const DEFAULTS: AutoRound = AutoRound { iterations: 200, reach: 0.5, scales: 0.1, seed: 42 };

    /// The share of the reach that step `index` moves by, if nothing but it does.
    pub fn share(&self, index: u32) -> f32 {
        let count = self.iterations.max(1) as f32;
        2.0 * (1.0 - (index as f32 + 0.5) / count) / count
    }
}

const OPTIONS: &[OptionRow] = &[
    OptionRow {
        name: "iterations",
        values: Values::COUNT,
        about: "steps for each block, each on one batch: of at most 2048 tokens, for graphs of 8 samples",
    },
    OptionRow { name: "reach", values: Values::RATE, about: "how far codes can move, in distances of the grid" },
    OptionRow { name: "scales", values: Values::SHARE, about: "how far scales can move, as a share of themselves" },
    OptionRow { name: "seed", values: Values::SEED, about: "decides the order of batches" },
];

/// The row.
pub fn row() -> AlgorithmRow<AutoRound> {
    let about = "moves the codes and scales of a rounding until the block's output is nearest to the float model's";
    let row = AlgorithmRow::of_settings(NAME, about, OPTIONS, AutoRound::DEFAULTS, |settings| settings);
    row.with_aliases(&["auto-round", "signround", "sign-round"]).with_paper("arXiv 2309.05516")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_the_reach() {
        let settings = AutoRound::DEFAULTS;
        let sum: f32 = (0..settings.iterations).map(|index| settings.share(index)).sum();
        assert!((sum - 1.0).abs() < 1e-5);
    }
}
