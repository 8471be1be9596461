//! Tuning of whole blocks: what a rounding has chosen is changed so that the block's output comes nearer to the float model's. The steps on a
//! weight are in [`LatentWeight`](crate::rounding::LatentWeight) and [`TunedWeight`](crate::rounding::TunedWeight), those on a norm in
//! [`TunedVector`]; who has blocks computes gradients.

mod autoround;
mod tune;
mod vector;

pub use autoround::{AutoRound, NAME as AUTOROUND, Preset, row as autoround};
pub use tune::Tune;
pub use vector::TunedVector;

use crate::options::{self, Settings};
use crate::registry::AlgorithmRow;
use crate::scheme::{FloatScale, FloatScheme, IntScheme, ScaleType, TensorScheme};

/// A tuning with its settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Tuning {
    /// Codes and scales follow the signs of gradients.
    AutoRound(AutoRound),
    /// Scales and norms follow gradients at fixed codes, or weights do with them.
    Tune(Tune),
}

impl Tuning {
    /// The name.
    pub fn name(&self) -> &'static str {
        match self {
            Tuning::AutoRound(_) => autoround::NAME,
            Tuning::Tune(_) => tune::NAME,
        }
    }

    /// All settings as they are spelled.
    pub fn settings(&self) -> Settings {
        match self {
            Tuning::AutoRound(settings) => options::shown(settings),
            Tuning::Tune(settings) => options::shown(settings),
        }
    }

    /// The settings that a name alone stands for, or with its preset.
    pub(crate) fn defaults(&self) -> Settings {
        match self {
            // Which preset it is must be spelled.
            Tuning::AutoRound(settings) => {
                options::shown(&AutoRound { preset: Preset::Default, ..settings.preset.settings() })
            }
            Tuning::Tune(_) => options::shown(&Tune::DEFAULTS),
        }
    }

    /// Steps on a block.
    pub fn iterations(&self) -> u32 {
        match self {
            Tuning::AutoRound(settings) => settings.iterations,
            Tuning::Tune(settings) => settings.iterations,
        }
    }

    /// How often it measures the block's loss on all data.
    pub fn measurements(&self) -> u32 {
        match self {
            Tuning::AutoRound(_) => 1,
            Tuning::Tune(settings) => settings.iterations.div_ceil(settings.period()),
        }
    }

    /// Numbers in f32 that it keeps for each weight of a block: its values and what is learned, not gradients, which are of a layer at a time.
    pub fn floats_of_weight(&self) -> u64 {
        match self {
            Tuning::AutoRound(_) => 2,
            // Moments of gradients too, and the best codes so far.
            Tuning::Tune(Tune { weights: true, .. }) => 5,
            Tuning::Tune(_) => 2,
        }
    }

    /// Why it is not for a scheme, if it is not.
    pub fn refuses(&self, scheme: &TensorScheme) -> Option<&'static str> {
        match (self, scheme) {
            // Where weights learn, such scales stay as they are.
            (Tuning::AutoRound(_) | Tuning::Tune(Tune { weights: true, .. }), _) => None,
            (
                Tuning::Tune(_),
                TensorScheme::Int(IntScheme { scale: ScaleType::PowerOfTwo, .. })
                | TensorScheme::Float(FloatScheme { scale: FloatScale::E8m0(_), .. }),
            ) => Some(
                "its scales are powers of two, which cannot move by small steps; with `tune:weights=on` its weights can",
            ),
            (Tuning::Tune(_), _) => None,
        }
    }
}

/// The rows.
pub(crate) fn rows() -> Vec<AlgorithmRow<Tuning>> {
    vec![autoround::row().map(Tuning::AutoRound), tune::row().map(Tuning::Tune)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tune_is_for_scales_that_move_by_small_steps() {
        let tune = Tuning::Tune(Tune::DEFAULTS);
        for (scheme, is_refused) in [
            ("int4:g32", false),
            ("uint4:g32:zp", false),
            ("e2m1:g16:e4m3:f32", false),
            ("e2m1:g32:e8m0", true),
            ("int8:channel:pow2", true),
        ] {
            let scheme: TensorScheme = scheme.parse().unwrap();
            assert_eq!(tune.refuses(&scheme).is_some(), is_refused, "{scheme}");
            assert_eq!(Tuning::AutoRound(AutoRound::DEFAULTS).refuses(&scheme), None);
            assert_eq!(Tuning::Tune(Tune { weights: true, ..Tune::DEFAULTS }).refuses(&scheme), None);
        }
    }
}
