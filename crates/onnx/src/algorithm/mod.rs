//! The algorithms that win back what plain static quantization loses: one row of [`ALGORITHMS`] each, one file each.
//!
//! They run in the order of the table, whatever the order in which they are asked for:
//!
//! 1. [`Stage::Float`] changes the float model without changing its function, before ranges are observed;
//! 2. [`Stage::Rounding`] chooses the codes of weights whose scales are known, layer by layer;
//! 3. [`Stage::Correction`] changes the biases of layers whose codes are chosen.
//!
//! The last two see activations: `tune` walks the float model and the quantized one side by side, the layers done so far as
//! they have become. No graph is written here.
//!
//! Adding one: a file with its settings, a variant and an arm of [`Algorithm`], a row of the table.

mod attention_scores;
mod awq;
mod bias_correction;
mod captured;
mod channels;
mod cross_layer_equalization;
mod data;
mod error;
mod gptq;
mod hqq;
mod input_scaling;
mod layer;
mod list;
mod option;
mod quarot;
mod reconstruction;
mod selection;
mod simulation;
mod smooth_quant;
mod spelling;
mod store;
mod target;
mod transform;
mod trial;
mod tuning;
mod unfold;
mod walk;

pub(crate) use awq::Unlimited;
pub use awq::{AwqSettings, LimitedWeight};
pub use bias_correction::BiasCorrection;
pub use captured::{Captured, Pair};
pub use cross_layer_equalization::{ClipRule, Equalization, EqualizedPair, equalize};
pub use data::Data;
pub use error::AlgorithmError;
pub use gptq::GptqSettings;
pub use hqq::HqqSettings;
pub use input_scaling::ScaledInput;
pub use kvant_quant::reconstruction::ActivationFunction;
pub use layer::{Grid, Layer, Rounded, Rounding};
pub(crate) use list::suffix;
pub use list::{Algorithms, split_name};
pub use option::AlgorithmOption;
pub use quarot::{LeftStream, QuarotSettings, RotatedStream, Rotations, rotate};
pub use reconstruction::{AdaQuant, AdaRound, Span};
pub use smooth_quant::SmoothQuantSettings;
pub use spelling::SpellingError;
pub(crate) use transform::{Transformed, check, transform, transform_with_data};
pub use tuning::LayerGain;
pub(crate) use tuning::tune;

/// An algorithm with its settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Algorithm {
    /// Scales of channels moved between consecutive layers.
    Equalization(Equalization),
    /// Channels of the residual stream and of attention heads rotated.
    Quarot(QuarotSettings),
    /// Scales of channels moved from the inputs of products into their weights.
    SmoothQuant(SmoothQuantSettings),
    /// Scales of channels under which rounded weights change outputs least.
    Awq(AwqSettings),
    /// Zero points between codes, found by a search.
    Hqq(HqqSettings),
    /// Codes that make up for each other's errors.
    Gptq(GptqSettings),
    /// Whether each weight goes up or down to a code, trained layer by layer.
    AdaRound(AdaRound),
    /// Weights that are trained through their rounding, layer by layer.
    AdaQuant(AdaQuant),
    /// Biases that make up for the mean error of a layer.
    BiasCorrection(BiasCorrection),
}

/// When an algorithm runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// On the float model, before calibration.
    Float,
    /// On weights, once their scales are known. Only one algorithm can choose codes.
    Rounding,
    /// On biases, once the codes of their weights are chosen.
    Correction,
}

/// What is to be said of an algorithm.
#[derive(Debug)]
pub struct AlgorithmRow {
    /// The spelling.
    pub name: &'static str,
    /// Other spellings. All of them are suffixes of presets too, in capitals, with `_` for `-`.
    pub aliases: &'static [&'static str],
    /// When it runs.
    pub stage: Stage,
    /// Whether it runs the model over calibration data, beyond those that ranges need.
    pub needs_data: bool,
    /// What it costs besides, in words.
    pub cost: &'static str,
    /// Where it is from.
    pub paper: &'static str,
    /// What it is for, in a line.
    pub about: &'static str,
    /// With its usual settings.
    pub usual: Algorithm,
    /// What can be set.
    pub options: &'static [AlgorithmOption],
}

/// Every algorithm, in the order in which they run.
pub const ALGORITHMS: &[AlgorithmRow] = &[
    AlgorithmRow {
        name: "cle",
        aliases: &["equalization", "cross-layer-equalization"],
        stage: Stage::Float,
        needs_data: false,
        cost: "little",
        paper: "arXiv 1906.04721",
        about: "scales channels of consecutive layers so that both weights use their range: for depthwise convolutions",
        usual: Algorithm::Equalization(Equalization::USUAL),
        options: cross_layer_equalization::OPTIONS,
    },
    AlgorithmRow {
        name: "quarot",
        aliases: &["rotation"],
        stage: Stage::Float,
        needs_data: false,
        cost: "little",
        paper: "arXiv 2404.00456",
        about: "rotates the channels of the residual stream so that outliers spread over all: for transformers",
        usual: Algorithm::Quarot(QuarotSettings::USUAL),
        options: quarot::OPTIONS,
    },
    AlgorithmRow {
        name: "smoothquant",
        aliases: &["smooth", "smooth-quant"],
        stage: Stage::Float,
        needs_data: true,
        cost: "a run of the float model",
        paper: "arXiv 2211.10438",
        about: "moves the outliers of a product's inputs into its weights: for transformers",
        usual: Algorithm::SmoothQuant(SmoothQuantSettings::USUAL),
        options: smooth_quant::OPTIONS,
    },
    AlgorithmRow {
        name: "awq",
        aliases: &[],
        stage: Stage::Float,
        needs_data: true,
        cost: "a run of the float model, inputs^2 for each of its tokens",
        paper: "arXiv 2306.00978",
        about: "scales the inputs of products so that rounding their weights changes outputs least, then limits weights: for four bits",
        usual: Algorithm::Awq(AwqSettings::USUAL),
        options: awq::OPTIONS,
    },
    AlgorithmRow {
        name: "hqq",
        aliases: &["half-quadratic"],
        stage: Stage::Rounding,
        needs_data: false,
        cost: "twenty rounds over the weights",
        paper: "mobiusml.github.io/hqq_blog",
        about: "zero points between codes, searched for each block: for MatMulNBits without data",
        usual: Algorithm::Hqq(HqqSettings::USUAL),
        options: hqq::OPTIONS,
    },
    AlgorithmRow {
        name: "gptq",
        aliases: &[],
        stage: Stage::Rounding,
        needs_data: true,
        cost: "inputs^2 for each place of a layer's output",
        paper: "arXiv 2210.17323",
        about: "each column of a weight makes up for the rounding errors of those before it: for weights of few bits",
        usual: Algorithm::Gptq(GptqSettings::USUAL),
        options: gptq::OPTIONS,
    },
    AlgorithmRow {
        name: "adaround",
        aliases: &[],
        stage: Stage::Rounding,
        needs_data: true,
        cost: "minutes: many runs of each layer, forward and backward",
        paper: "arXiv 2004.10568",
        about: "trains for each weight whether it is rounded up or down, so that the layer's output stays",
        usual: Algorithm::AdaRound(AdaRound::USUAL),
        options: reconstruction::ADA_ROUND_OPTIONS,
    },
    AlgorithmRow {
        name: "adaquant",
        aliases: &[],
        stage: Stage::Rounding,
        needs_data: true,
        cost: "minutes: many runs of each layer, forward and backward",
        paper: "arXiv 2006.10518",
        about: "trains the weights through their rounding, so that the layer's output stays",
        usual: Algorithm::AdaQuant(AdaQuant::USUAL),
        options: reconstruction::ADA_QUANT_OPTIONS,
    },
    AlgorithmRow {
        name: "bias-correction",
        aliases: &["biascorrection", "bc"],
        stage: Stage::Correction,
        needs_data: true,
        cost: "a run of both models, layer by layer",
        paper: "arXiv 1906.04721",
        about: "biases that make up for the mean error of each channel of a layer's output",
        usual: Algorithm::BiasCorrection(BiasCorrection::USUAL),
        options: bias_correction::OPTIONS,
    },
];

impl AlgorithmRow {
    /// What it must know of the model's activations, in words.
    pub fn needs(&self) -> &'static str {
        match (self.needs_data, self.stage) {
            (false, _) => "nothing",
            (true, Stage::Float) => "largest activations",
            (true, _) => "inputs and float outputs of layers",
        }
    }
}

impl Algorithm {
    /// The row of the table.
    pub fn row(&self) -> &'static AlgorithmRow {
        let same = |row: &&AlgorithmRow| std::mem::discriminant(&row.usual) == std::mem::discriminant(self);
        // Every algorithm has a row: a test sees to it.
        ALGORITHMS.iter().find(same).unwrap_or(&ALGORITHMS[0])
    }

    /// The algorithm of a name with its usual settings, in any case of letters, with `-` or `_`.
    pub fn named(name: &str) -> Option<Algorithm> {
        let wanted = name.to_ascii_lowercase().replace('_', "-");
        let row = ALGORITHMS.iter().find(|row| row.name == wanted || row.aliases.contains(&wanted.as_str()));
        row.map(|row| row.usual)
    }

    /// How it chooses codes, if that is what it does.
    pub(crate) fn rounding(&self) -> Option<&dyn Rounding> {
        match self {
            Self::Gptq(settings) => Some(settings),
            Self::AdaRound(settings) => Some(settings),
            Self::AdaQuant(settings) => Some(settings),
            // Zero points between codes are found where they are written.
            Self::Hqq(_) => None,
            Self::Equalization(_) | Self::Quarot(_) | Self::SmoothQuant(_) | Self::Awq(_) | Self::BiasCorrection(_) => {
                None
            }
        }
    }

    /// Whether layers without a bias must get one for it, of zeros.
    pub(crate) fn needs_biases(&self) -> bool {
        match self {
            Self::BiasCorrection(_) => true,
            Self::AdaRound(settings) => settings.update_bias,
            Self::AdaQuant(settings) => settings.update_bias,
            Self::Equalization(_)
            | Self::Quarot(_)
            | Self::SmoothQuant(_)
            | Self::Awq(_)
            | Self::Hqq(_)
            | Self::Gptq(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_are_unique_and_rows_stand_in_the_order_of_stages() {
        let names: Vec<&str> = ALGORITHMS.iter().flat_map(|r| r.aliases.iter().copied().chain([r.name])).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        assert!(ALGORITHMS.is_sorted_by_key(|row| row.stage));
        for row in ALGORITHMS {
            assert_eq!(row.usual.row().name, row.name);
            let sees_layers = row.stage == Stage::Rounding && row.needs_data;
            assert_eq!(row.usual.rounding().is_some(), sees_layers, "{}", row.name);
        }
        for name in names {
            assert!(Algorithm::named(&name.to_uppercase().replace('-', "_")).is_some(), "{name}");
        }
    }
}
