//! AdaRound and AdaQuant on the layers of a graph: their settings, and how a layer's weight and samples become the matrices
//! that [`kvant_quant::reconstruction`] works on. The gradients are there.
//!
//! A layer reads what the quantized model gives it, all layers before it as they have become, and should make what it makes in
//! the float model. The activation function behind it is part of it. A layer whose error does not fall keeps its nearest codes.
//! With `drop_ratio` below one, steps read some of the float model's inputs; with `selective_update`, a layer keeps what was found
//! only where the whole model gains.

mod form;
mod mix;
mod normalization;
mod samples;

use kvant_quant::reconstruction::{self as core, CodeSteps, Method, Module, Settings, Weight, reconstruct};

use super::captured::Captured;
use super::error::AlgorithmError;
use super::layer::{Grid, Layer, Rounded, Rounding};
use super::option::{AlgorithmOption, COUNT, SHARE, SWITCH, Shown, count, number, option, share, switch};
use super::target::bias_factor;
use form::Form;
use mix::Mix;
use samples::PatchedSamples;

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
    pub const USUAL: Self = Self {
        num_iterations: 1000,
        learning_rate: 0.1,
        batch_size: 1,
        seed: SEED,
        early_stop: true,
        update_bias: false,
        drop_ratio: 1.0,
        selective_update: false,
        reg_param: core::AdaRound::USUAL.strength,
        beta_range: Span { first: core::AdaRound::USUAL.first_beta, last: core::AdaRound::USUAL.last_beta },
        warm_start: core::AdaRound::USUAL.warm_start,
    };
}

impl AdaQuant {
    /// As in Quark's presets.
    pub const USUAL: Self = Self {
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

impl Rounding for AdaRound {
    fn round(&self, layer: &Layer, captured: &Captured<'_>) -> Result<Rounded, AlgorithmError> {
        let settings = Settings {
            method: Method::AdaRound(core::AdaRound {
                strength: self.reg_param,
                first_beta: self.beta_range.first,
                last_beta: self.beta_range.last,
                warm_start: self.warm_start,
            }),
            iterations: self.num_iterations,
            learning_rate: self.learning_rate,
            batch_size: self.batch_size,
            seed: self.seed.into(),
            early_stop: self.early_stop,
            update_bias: self.update_bias,
        };
        round(layer, captured, &settings, self.drop_ratio)
    }

    fn takes_normalizations(&self) -> bool {
        true
    }

    fn reads_float_inputs(&self) -> bool {
        self.drop_ratio < 1.0
    }

    fn is_selective(&self) -> bool {
        self.selective_update
    }
}

impl Rounding for AdaQuant {
    fn round(&self, layer: &Layer, captured: &Captured<'_>) -> Result<Rounded, AlgorithmError> {
        let settings = Settings {
            method: Method::AdaQuant,
            iterations: self.num_iterations,
            learning_rate: self.learning_rate,
            batch_size: self.batch_size,
            seed: self.seed.into(),
            early_stop: self.early_stop,
            update_bias: self.update_bias,
        };
        round(layer, captured, &settings, self.drop_ratio)
    }

    fn takes_normalizations(&self) -> bool {
        true
    }

    fn reads_float_inputs(&self) -> bool {
        self.drop_ratio < 1.0
    }

    fn is_selective(&self) -> bool {
        self.selective_update
    }
}

/// Codes of more bits have neighbours closer than f32 can tell.
const MOST_BITS: u32 = 16;

fn round(
    layer: &Layer,
    captured: &Captured<'_>,
    settings: &Settings,
    drop_ratio: f32,
) -> Result<Rounded, AlgorithmError> {
    let nearest = || Rounded { codes: layer.grid.nearest(&layer.weight), bias: None };
    let narrow = layer.grid.element.integer_bits().is_some_and(|bits| bits <= MOST_BITS);
    let form = Form::of(layer).filter(|_| narrow);
    let Some((form, steps)) = form.and_then(|form| Some((form.clone(), steps(&layer.grid, &form)?))) else {
        return Ok(nearest());
    };
    let mix = Mix::new(drop_ratio, settings.seed);
    let Some(mut samples) = PatchedSamples::new(&form, layer, captured, mix)? else { return Ok(nearest()) };
    let factor = bias_factor(&layer.node);
    let bias: Option<Vec<f32>> = layer.bias.as_ref().map(|bias| bias.iter().map(|b| b * factor).collect());
    let (values, shape) = (form.rows(&layer.weight), form.shape);
    let module = Module { shape, function: layer.function.clone() };
    let weight = Weight { values: &values, features: shape.features, steps: &steps, bias: bias.as_deref() };
    let found = reconstruct(&module, weight, &mut samples, settings)?;
    let code = |(i, step): (usize, i32)| (i64::from(step) + layer.grid.affine(i).zero_point) as i32;
    let codes = form.stored(&found.steps).into_iter().enumerate().map(code).collect();
    // What a layer multiplies by nothing cannot be trained.
    let unscaled = |bias: Vec<f32>| (factor != 0.0).then(|| bias.iter().map(|b| b / factor).collect());
    Ok(Rounded { codes, bias: found.bias.and_then(unscaled) })
}

/// The codes of each output's weights; `None` where an output has several scales.
fn steps(grid: &Grid, form: &Form) -> Option<Vec<CodeSteps>> {
    let of_output = |output: usize| {
        let affine = grid.affine(form.place(output, 0));
        let alike = (0..form.shape.features).all(|feature| grid.affine(form.place(output, feature)) == affine);
        let bound = |code: i64| (code - affine.zero_point) as f32;
        let steps = CodeSteps { scale: affine.scale, lowest: bound(grid.codes.min), highest: bound(grid.codes.max) };
        (alike && affine.scale > 0.0).then_some(steps)
    };
    (0..form.shape.outputs).map(of_output).collect()
}

#[cfg(test)]
mod tests;
