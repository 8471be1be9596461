//! Learned rounding of a whole block: codes and scales that a rounding has chosen are moved so that the block's output comes nearer to
//! the float model's.
//!
//! Source: Cheng et al., Optimize Weight Rounding via Signed Gradient Descent for the Quantization of LLMs, arXiv 2309.05516.

use crate::options::{self, OptionRow, Values};
use crate::registry::AlgorithmRow;
use serde::{Deserialize, Serialize};

/// The name.
pub const NAME: &str = "autoround";

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AutoRound {
    /// Where settings that are not given come from.
    pub preset: Preset,
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

/// The presets of AutoRound's command line. AutoRound states the length of the first step, which is twice the reach over the steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// 50 steps, the first of 0.005.
    Light,
    /// 200 steps, the first of their inverse.
    #[default]
    Default,
    /// 1000 steps, the first of their inverse.
    Best,
}

impl Preset {
    /// The settings.
    pub fn settings(self) -> AutoRound {
        match self {
            // 0.005 * 50 / 2, and as large a part of the usual reach for scales.
            Preset::Light => {
                AutoRound { preset: self, iterations: 50, reach: 0.125, scales: 0.025, ..AutoRound::DEFAULTS }
            }
            Preset::Default => AutoRound::DEFAULTS,
            Preset::Best => AutoRound { preset: self, iterations: 1000, ..AutoRound::DEFAULTS },
        }
    }

    fn named(text: &str) -> Option<Preset> {
        match text {
            "light" => Some(Preset::Light),
            "default" => Some(Preset::Default),
            "best" => Some(Preset::Best),
            _ => None,
        }
    }
}

impl AutoRound {
    /// 200 steps.
    pub const DEFAULTS: AutoRound =
        AutoRound { preset: Preset::Default, iterations: 200, reach: 0.5, scales: 0.1, seed: 42 };

    /// The share of the reach that step `index` moves by, if nothing but it does.
    pub fn share(&self, index: u32) -> f32 {
        let count = self.iterations.max(1) as f32;
        2.0 * (1.0 - (index as f32 + 0.5) / count) / count
    }
}

const OPTIONS: &[OptionRow] = &[
    OptionRow {
        name: "preset",
        values: Values { text: "light, default or best", accepts: |text| Preset::named(text).is_some() },
        about: "AutoRound's: light is 50 iterations of reach 0.125, default 200 and best 1000 of reach 0.5; other options replace parts of it",
    },
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
    let read = |given: &[(&str, &str)]| {
        let preset = given.iter().find(|(name, _)| *name == "preset").and_then(|(_, text)| Preset::named(text));
        options::read(NAME, OPTIONS, &preset.unwrap_or_default().settings(), given)
    };
    let row = AlgorithmRow::new(NAME, about, OPTIONS, AutoRound::DEFAULTS, read);
    row.with_aliases(&["auto-round", "signround", "sign-round"]).with_paper("arXiv 2309.05516")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuning::Tuning;

    #[test]
    fn shares_add_up_to_the_reach() {
        let settings = AutoRound::DEFAULTS;
        let sum: f32 = (0..settings.iterations).map(|index| settings.share(index)).sum();
        assert!((sum - 1.0).abs() < 1e-5);
    }

    #[test]
    fn first_steps_of_presets_are_the_learning_rates_of_autoround() {
        for (preset, rate) in [(Preset::Light, 5e-3), (Preset::Default, 1.0 / 200.0), (Preset::Best, 1.0 / 1000.0)] {
            let settings = preset.settings();
            let first = 2.0 * settings.reach / settings.iterations as f32;
            assert!((first - rate).abs() < 1e-7, "{preset:?}: {first}");
        }
    }

    #[test]
    fn presets_give_what_other_options_do_not() {
        let read = |given: &[(&str, &str)]| row().read(given).unwrap();
        let light = read(&[("preset", "light")]);
        assert_eq!((light.iterations, light.reach), (50, 0.125));
        let longer = read(&[("iterations", "70"), ("preset", "light")]);
        assert_eq!((longer.iterations, longer.reach, longer.preset), (70, 0.125, Preset::Light));
        assert_eq!(Tuning::AutoRound(light).to_string(), "autoround:preset=light");
        assert_eq!(Tuning::AutoRound(longer).to_string(), "autoround:preset=light:iterations=70");
        assert!(row().read(&[("preset", "heavy")]).is_err());
    }
}
