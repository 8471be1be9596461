//! The settings of AdaRound and AdaQuant.

use kvant_quant::reconstruction as core;

use super::option::{AlgorithmOption, COUNT, SHARE, SWITCH, Shown, count, number, option, share, switch};

/// AdaRound: each weight goes up or down to a code, which is trained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaRound {
    /// Steps of the optimizer for each layer.
    pub num_iterations: u32,
    /// Adam's learning rate, of the shares.
    pub learning_rate: f32,
    /// Samples in a step.
    pub batch_size: u32,
    /// Decides the order of the samples.
    pub seed: u32,
    /// Whether to stop when a layer's error has not fallen for a while.
    pub early_stop: bool,
    /// Whether biases are trained as well.
    pub update_bias: bool,
    /// The share of a layer's inputs that a step takes from the quantized model, element by element at random; the rest is
    /// the float model's.
    pub drop_ratio: f32,
    /// Whether a layer keeps what was found only where the outputs of the whole model come nearer to the float model's.
    pub selective_update: bool,
    /// How much the regularization counts.
    pub reg_param: f32,
    /// The regularization's power, from the first step with it to the last.
    pub beta_range: Span,
    /// The share of the steps before regularization sets in.
    pub warm_start: f32,
}

/// AdaQuant: the weights are trained through their rounding.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdaQuant {
    /// Steps of the optimizer for each layer.
    pub num_iterations: u32,
    /// Adam's learning rate, of the weights.
    pub learning_rate: f32,
    /// Samples in a step.
    pub batch_size: u32,
    /// Decides the order of the samples.
    pub seed: u32,
    /// Whether to stop when a layer's error has not fallen for a while.
    pub early_stop: bool,
    /// Whether biases are trained as well.
    pub update_bias: bool,
    /// The share of a layer's inputs that a step takes from the quantized model, element by element at random; the rest is
    /// the float model's.
    pub drop_ratio: f32,
    /// Whether a layer keeps what was found only where the outputs of the whole model come nearer to the float model's.
    pub selective_update: bool,
}

/// A number that changes from a first to a last value: `20..2`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// The first value.
    pub first: f32,
    /// The last value.
    pub last: f32,
}

/// The seed of Quark's presets.
const SEED: u32 = 1_705_472_343;

impl AdaRound {
    /// As in Quark's presets.
    pub const DEFAULTS: Self = Self {
        num_iterations: 1000,
        learning_rate: 0.1,
        batch_size: 1,
        seed: SEED,
        early_stop: true,
        update_bias: false,
        drop_ratio: 1.0,
        selective_update: false,
        reg_param: core::AdaRound::DEFAULTS.strength,
        beta_range: Span { first: core::AdaRound::DEFAULTS.first_beta, last: core::AdaRound::DEFAULTS.last_beta },
        warm_start: core::AdaRound::DEFAULTS.warm_start,
    };
}

impl AdaQuant {
    /// As in Quark's presets.
    pub const DEFAULTS: Self = Self {
        num_iterations: 1000,
        learning_rate: 1e-5,
        batch_size: 1,
        seed: SEED,
        early_stop: true,
        update_bias: false,
        drop_ratio: 1.0,
        selective_update: false,
    };
}

const RATE: &str = "a number from 0 to 10";
const SEEDS: &str = "a whole number from 0 to 4294967295";
const POWERS: &str = "two numbers from 1 to 100, such as 20..2";

fn rate(text: &str) -> Option<f32> {
    number(text, 0.0..=10.0).map(|rate| rate as f32)
}

fn seed(text: &str) -> Option<u32> {
    text.parse().ok()
}

fn powers(text: &str) -> Option<Span> {
    let power = |text| number(text, 1.0..=100.0).map(|power| power as f32);
    let (first, last) = text.split_once("..")?;
    Some(Span { first: power(first)?, last: power(last)? })
}

impl Shown for Span {
    fn shown(&self) -> String {
        format!("{}..{}", self.first, self.last)
    }
}

/// What can be set of AdaRound.
pub(super) const ADA_ROUND_OPTIONS: &[AlgorithmOption] = &[
    option!(AdaRound.num_iterations, "num_iterations", COUNT, "steps of the optimizer for each layer", count),
    option!(AdaRound.learning_rate, "learning_rate", RATE, "Adam's learning rate", rate),
    option!(AdaRound.batch_size, "batch_size", COUNT, "samples in a step", count),
    option!(AdaRound.seed, "seed", SEEDS, "decides the order of the samples", seed),
    option!(AdaRound.early_stop, "early_stop", SWITCH, "stop a layer whose error no longer falls", switch),
    option!(AdaRound.update_bias, "update_bias", SWITCH, "train biases as well", switch),
    option!(AdaRound.drop_ratio, "drop_ratio", SHARE, "the share of inputs that is the quantized model's", share),
    option!(
        AdaRound.selective_update,
        "selective_update",
        SWITCH,
        "keep what brings the model's outputs nearer",
        switch
    ),
    option!(AdaRound.reg_param, "reg_param", RATE, "how much the regularization counts", rate),
    option!(AdaRound.beta_range, "beta_range", POWERS, "the regularization's power, first and last", powers),
    option!(AdaRound.warm_start, "warm_start", SHARE, "the share of the steps without regularization", share),
];

/// What can be set of AdaQuant.
pub(super) const ADA_QUANT_OPTIONS: &[AlgorithmOption] = &[
    option!(AdaQuant.num_iterations, "num_iterations", COUNT, "steps of the optimizer for each layer", count),
    option!(AdaQuant.learning_rate, "learning_rate", RATE, "Adam's learning rate, of the weights", rate),
    option!(AdaQuant.batch_size, "batch_size", COUNT, "samples in a step", count),
    option!(AdaQuant.seed, "seed", SEEDS, "decides the order of the samples", seed),
    option!(AdaQuant.early_stop, "early_stop", SWITCH, "stop a layer whose error no longer falls", switch),
    option!(AdaQuant.update_bias, "update_bias", SWITCH, "train biases as well", switch),
    option!(AdaQuant.drop_ratio, "drop_ratio", SHARE, "the share of inputs that is the quantized model's", share),
    option!(
        AdaQuant.selective_update,
        "selective_update",
        SWITCH,
        "keep what brings the model's outputs nearer",
        switch
    ),
];
