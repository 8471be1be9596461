//! The available algorithms, one row each: their spelling and options. Their implementation is
//! [`crate::algorithm`]; roundings and transforms, and what can be set of them, are those of [`kvant_quant::algorithm`].

mod equalization;
mod list;
mod rotate;
mod spelling;

pub use equalization::{ClipRule, Equalization};
pub(crate) use list::suffix;
pub use list::{Algorithms, split_name};
pub use rotate::RotateSettings;
pub use spelling::SpellingError;

use std::sync::{Arc, LazyLock};

use kvant_quant::algorithm;
use kvant_quant::bias_correction;
pub use kvant_quant::bias_correction::BiasCorrection;
use kvant_quant::options::{self, OptionRow, Settings};
use kvant_quant::registry;
use kvant_quant::rounding::{AnyRounding, Hqq, Needs};
use kvant_quant::transform::{self, AnyTransform};
use kvant_quant::tuning::{self, AutoRound};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// An algorithm with its settings.
#[derive(Debug, Clone, PartialEq)]
pub enum Algorithm {
    /// Scales of channels moved between consecutive layers.
    Equalization(Equalization),
    /// Channels of the residual stream and of attention heads rotated.
    Rotate(RotateSettings),
    /// Scales of channels moved from the inputs of products into their weights, as data show.
    Transform(AnyTransform),
    /// Codes that are not the nearest ones.
    Rounding(AnyRounding),
    /// Codes and scales of a block of layers, learned together once they are chosen.
    Tuning(AutoRound),
    /// Biases that compensate for the mean error of a layer.
    BiasCorrection(BiasCorrection),
}

/// When an algorithm runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// On the float model, before calibration.
    Float,
    /// On weights, once their scales are known. Only one algorithm can choose codes.
    Rounding,
    /// On codes and scales that are chosen, block by block.
    Tuning,
    /// On biases, once the codes of their weights are chosen.
    Correction,
}

/// An algorithm that can be selected by name.
pub type AlgorithmRow = registry::AlgorithmRow<Algorithm>;

/// Every algorithm, in the order in which they run.
pub fn algorithms() -> Vec<Arc<AlgorithmRow>> {
    let roundings = algorithm::roundings().into_iter().filter(|row| !row.default.is_nearest());
    let roundings = roundings.map(|row| Arc::new(row.map(Algorithm::Rounding)));
    let transforms = algorithm::transforms().into_iter().map(|row| Arc::new(row.map(Algorithm::Transform)));
    let last = [TUNING.clone(), CORRECTION.clone()];
    OF_GRAPHS.iter().cloned().chain(transforms).chain(roundings).chain(last).collect()
}

/// The algorithm of a name, in any case of letters, with `-` or `_`.
pub fn named(name: &str) -> Option<Arc<AlgorithmRow>> {
    algorithms().into_iter().find(|row| row.is_named(name))
}

/// Those that only graphs have.
static OF_GRAPHS: LazyLock<Vec<Arc<AlgorithmRow>>> = LazyLock::new(|| {
    let equalization = row(
        ("cle", Equalization::DEFAULTS),
        equalization::OPTIONS,
        Algorithm::Equalization,
        "scales channels of consecutive layers so that both weights use their range: for depthwise convolutions",
        "arXiv 1906.04721",
    );
    let rotate = row(
        ("rotate", RotateSettings::DEFAULTS),
        rotate::OPTIONS,
        Algorithm::Rotate,
        "rotates the channels of the residual stream so that outliers spread over all: for transformers",
        "arXiv 2404.00456",
    );
    [
        equalization.with_aliases(&["equalization", "cross-layer-equalization"]),
        rotate.with_aliases(&["quarot", "rotation"]),
    ]
    .map(Arc::new)
    .to_vec()
});

static TUNING: LazyLock<Arc<AlgorithmRow>> = LazyLock::new(|| Arc::new(tuning::autoround().map(Algorithm::Tuning)));

static CORRECTION: LazyLock<Arc<AlgorithmRow>> =
    LazyLock::new(|| Arc::new(bias_correction::row().map(Algorithm::BiasCorrection)));

/// A row of an algorithm whose settings are the fields of a struct.
fn row<S: Serialize + DeserializeOwned + Clone + Send + Sync + 'static>(
    (name, defaults): (&'static str, S),
    options: &'static [OptionRow],
    of: fn(S) -> Algorithm,
    about: &'static str,
    paper: &'static str,
) -> AlgorithmRow {
    AlgorithmRow::of_settings(name, about, options, defaults, of).with_paper(paper)
}

impl Algorithm {
    /// The spelling without options.
    pub fn name(&self) -> &str {
        match self {
            Self::Equalization(_) => "cle",
            Self::Rotate(_) => "rotate",
            Self::Transform(transform) => transform.name(),
            Self::Rounding(rounding) => rounding.name(),
            Self::Tuning(_) => tuning::AUTOROUND,
            Self::BiasCorrection(_) => bias_correction::NAME,
        }
    }

    /// All of its settings, as options are spelled.
    pub fn settings(&self) -> Settings {
        match self {
            Self::Equalization(settings) => options::shown(settings),
            Self::Rotate(settings) => options::shown(settings),
            Self::Transform(transform) => transform.settings(),
            Self::Rounding(rounding) => rounding.settings(),
            Self::Tuning(settings) => options::shown(settings),
            Self::BiasCorrection(settings) => options::shown(settings),
        }
    }

    /// When it runs.
    pub fn stage(&self) -> Stage {
        match self {
            Self::Equalization(_) | Self::Rotate(_) | Self::Transform(_) => Stage::Float,
            Self::Rounding(_) => Stage::Rounding,
            Self::Tuning(_) => Stage::Tuning,
            Self::BiasCorrection(_) => Stage::Correction,
        }
    }

    /// Returns whether it runs the model over calibration data, beyond those that ranges need.
    pub fn needs_data(&self) -> bool {
        match self {
            Self::Equalization(_) | Self::Rotate(_) => false,
            Self::Transform(_) | Self::Tuning(_) | Self::BiasCorrection(_) => true,
            Self::Rounding(_) => self.hqq().is_none(),
        }
    }

    /// The statistics of activations that it needs, in words.
    pub fn needs(&self) -> &'static str {
        match self {
            Self::Transform(transform) => match transform.needs() {
                transform::Needs::Maxima => "largest activations",
                transform::Needs::MaximaAndRuns => "largest activations, trials",
                transform::Needs::MeansRunsAndSamples => "mean activations, trials",
            },
            Self::Tuning(_) => "inputs and float outputs of blocks",
            _ if self.needs_data() => "inputs and float outputs of layers",
            _ => "nothing",
        }
    }

    /// Its further cost, in words.
    pub fn cost(&self) -> &'static str {
        match self {
            Self::Equalization(_) | Self::Rotate(_) => "little",
            Self::Transform(transform) => match transform.needs() {
                transform::Needs::Maxima => "a run of the float model",
                transform::Needs::MaximaAndRuns => "a run of the float model, trials on samples",
                transform::Needs::MeansRunsAndSamples => "a run of the float model, inputs^2 for each of its tokens",
            },
            Self::Rounding(rounding) => match rounding.needs() {
                Needs::Nothing => "twenty rounds over the weights",
                Needs::Hessian => "inputs^2 for each position of a layer's output",
                Needs::InputMismatch => "three times that of gptq",
                Needs::Outputs => "minutes: many runs of each layer, forward and backward",
            },
            Self::Tuning(_) => "minutes: many runs of each block, forward and backward",
            Self::BiasCorrection(_) => "a run of both models, layer by layer",
        }
    }

    /// How it chooses codes, if that is what it does as the models run.
    pub(crate) fn rounding(&self) -> Option<&AnyRounding> {
        match self {
            Self::Rounding(rounding) if self.needs_data() => Some(rounding),
            _ => None,
        }
    }

    /// Learned rounding of blocks, if that is what it is.
    pub(crate) fn tuning(&self) -> Option<AutoRound> {
        if let Self::Tuning(settings) = self { Some(*settings) } else { None }
    }

    /// HQQ, whose zero points between codes are found where blocks are written.
    pub(crate) fn hqq(&self) -> Option<Hqq> {
        if let Self::Rounding(rounding) = self { rounding.downcast().copied() } else { None }
    }

    /// Returns whether layers without a bias must get one for it, of zeros.
    pub(crate) fn needs_biases(&self) -> bool {
        match self {
            Self::BiasCorrection(_) => true,
            Self::Rounding(rounding) => rounding.trains_biases(),
            Self::Equalization(_) | Self::Rotate(_) | Self::Transform(_) | Self::Tuning(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithm_options_read_back_and_refuse_nonsense() {
        for row in algorithms() {
            let settings = row.default.settings();
            let given: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (&**name, &**value)).collect();
            assert_eq!(given.len(), row.options.len(), "{}", row.name);
            assert_eq!(row.read(&given).unwrap(), row.default);
            for option in row.options.iter() {
                for nonsense in ["", "x", "nan", "inf", "-1e9", "ON"] {
                    assert!(row.read(&[(option.name, nonsense)]).is_err(), "{}:{} {nonsense}", row.name, option.name);
                }
            }
        }
        assert!(named("no").is_none() && named("rtn").is_none());
    }
}
