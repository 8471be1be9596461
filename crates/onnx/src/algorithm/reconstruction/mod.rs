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
use super::layer::{Grid, Layer, Rounded, Rounding};
use super::target::bias_factor;
use crate::algorithm_settings::{AdaQuant, AdaRound};
use crate::error::AlgorithmError;
use form::Form;
use mix::Mix;
use samples::PatchedSamples;

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
