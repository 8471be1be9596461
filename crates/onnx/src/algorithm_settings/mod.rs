//! The algorithms that may be asked for, one row of [`ALGORITHMS`] each: how they are spelled and what can be set. What they do is
//! [`crate::algorithm`].

mod awq;
mod bias_correction;
mod equalization;
mod gptq;
mod hqq;
mod list;
mod option;
mod quarot;
mod reconstruction;
mod smooth_quant;
mod spelling;

pub use awq::AwqSettings;
pub use bias_correction::BiasCorrection;
pub use equalization::{ClipRule, Equalization};
pub use gptq::GptqSettings;
pub use hqq::HqqSettings;
pub(crate) use list::suffix;
pub use list::{Algorithms, split_name};
pub use option::AlgorithmOption;
pub use quarot::QuarotSettings;
pub use reconstruction::{AdaQuant, AdaRound, Span};
pub use smooth_quant::SmoothQuantSettings;
pub use spelling::SpellingError;

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
        usual: Algorithm::Equalization(Equalization::DEFAULTS),
        options: equalization::OPTIONS,
    },
    AlgorithmRow {
        name: "quarot",
        aliases: &["rotation"],
        stage: Stage::Float,
        needs_data: false,
        cost: "little",
        paper: "arXiv 2404.00456",
        about: "rotates the channels of the residual stream so that outliers spread over all: for transformers",
        usual: Algorithm::Quarot(QuarotSettings::DEFAULTS),
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
        usual: Algorithm::SmoothQuant(SmoothQuantSettings::DEFAULTS),
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
        usual: Algorithm::Awq(AwqSettings::DEFAULTS),
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
        usual: Algorithm::Hqq(HqqSettings::DEFAULTS),
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
        usual: Algorithm::Gptq(GptqSettings::DEFAULTS),
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
        usual: Algorithm::AdaRound(AdaRound::DEFAULTS),
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
        usual: Algorithm::AdaQuant(AdaQuant::DEFAULTS),
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
        usual: Algorithm::BiasCorrection(BiasCorrection::DEFAULTS),
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
