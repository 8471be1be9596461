//! Settings of reconstruction. Names and defaults are those of AMD Quark, where it has them.

/// The trained variables.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Method {
    /// Whether each weight goes up or down to a code.
    AdaRound(Regularization),
    /// The weights themselves, through their rounding as if it were not there.
    AdaQuant,
}

/// AdaRound's regularization, `strength * sum(1 - |2 h - 1|^beta)` over the weights: it moves the shares `h` in `[0, 1]`
/// between two codes to either end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Regularization {
    /// Its weight.
    pub strength: f32,
    /// The power at the beginning: high, so that only shares near an end are moved.
    pub first_beta: f32,
    /// The power at the end: low, so that all of them are.
    pub last_beta: f32,
    /// The share of the iterations before it sets in.
    pub warm_start: f32,
}

impl Regularization {
    /// As in the paper.
    pub const DEFAULTS: Self = Self { strength: 0.01, first_beta: 20.0, last_beta: 2.0, warm_start: 0.2 };

    /// The power in an iteration, counted from 0; `None` before regularization sets in.
    ///
    /// `last + (first - last) / 2 * (1 + cos(pi (t - w) / (n - w)))` with `w` the first iteration with regularization.
    pub(super) fn beta(&self, iteration: u32, iterations: u32) -> Option<f32> {
        let warm = self.warm_start * iterations as f32;
        let t = iteration as f32;
        let done = ((t - warm) / (iterations as f32 - warm).max(1.0)).clamp(0.0, 1.0);
        let cosine = (std::f32::consts::PI * done).cos();
        (t >= warm).then_some(self.last_beta + 0.5 * (self.first_beta - self.last_beta) * (1.0 + cosine))
    }
}

/// The settings of a layer's reconstruction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// The trained variables.
    pub method: Method,
    /// Steps of the optimizer.
    pub iterations: u32,
    /// Adam's learning rate.
    pub learning_rate: f32,
    /// Samples in a step.
    pub batch_size: u32,
    /// Decides the order of the samples.
    pub seed: u64,
    /// Whether to stop when the error of the rounded layer has not fallen for a while.
    pub early_stop: bool,
    /// Whether the bias is trained as well.
    pub update_bias: bool,
    /// The mixing of inputs of the quantized and the float model, if enabled.
    pub mix: Option<InputMix>,
}

/// Steps that see some inputs as the quantized model has them and the others as the float model has them, element by element.
///
/// Source: the option `drop_ratio` of AMD Quark; Wei et al., QDrop: Randomly Dropping Quantization for Extremely Low-bit
/// Post-Training Quantization, arXiv 2203.05740.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InputMix {
    /// The share that is the quantized model's.
    pub ratio: f32,
    /// Decides which elements, with the number of the draw.
    pub seed: u64,
}

impl InputMix {
    /// `None` where everything is the quantized model's.
    pub fn new(ratio: f32, seed: u64) -> Option<InputMix> {
        (ratio < 1.0).then_some(InputMix { ratio, seed })
    }
}

impl Settings {
    /// The share of the iterations that is run in any case.
    pub(super) fn warm_start(&self) -> f32 {
        match self.method {
            Method::AdaRound(settings) => settings.warm_start,
            Method::AdaQuant => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regularization_power_falls_from_first_to_last() {
        let beta = |t| Regularization::DEFAULTS.beta(t, 1000);
        assert_eq!((beta(0), beta(199), beta(200)), (None, None, Some(20.0)));
        assert!((beta(600).unwrap() - 11.0).abs() < 1e-3 && (beta(1000).unwrap() - 2.0).abs() < 1e-4);
    }
}
