//! Bias correction: the mean error of each channel of a layer's output, on calibration data, goes into its bias.
//!
//! With `y` the layer's output in the float model and `y'` that of the quantized layer on what the quantized model gives it, all
//! layers before it corrected already: `b[c] += strength * mean(y[c] - y'[c])` over samples and positions, before the activation
//! function. Layers without a bias get one.
//! Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, arXiv 1906.04721, the empirical
//! form.

use kvant_quant::options::{OptionRow, Values};
use serde::{Deserialize, Serialize};

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BiasCorrection {
    /// The share of the mean error that is made up for.
    pub strength: f32,
}

impl BiasCorrection {
    /// All of it.
    pub const DEFAULTS: Self = Self { strength: 1.0 };

    /// The bias that makes up for a mean drift of each channel; `factor` is what the layer multiplies its bias by.
    pub(crate) fn corrected(&self, bias: &[f32], drift: &[f64], factor: f32) -> Vec<f32> {
        let change =
            |drift: f64| f64::from(self.strength) * drift / f64::from(if factor == 0.0 { 1.0 } else { factor });
        let corrected = |(&b, &drift): (&f32, &f64)| (f64::from(b) + change(drift)) as f32;
        let finite = |(made, &before): (f32, &f32)| if made.is_finite() { made } else { before };
        bias.iter().zip(drift).map(corrected).zip(bias).map(finite).collect()
    }
}

/// What can be set.
pub(super) const OPTIONS: &[OptionRow] =
    &[OptionRow { name: "strength", values: Values::SHARE, about: "the share of the mean error that is made up for" }];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drift_is_added_as_the_layer_will_multiply_it() {
        let half = BiasCorrection { strength: 0.5 };
        assert_eq!(half.corrected(&[1.0, 2.0], &[2.0, f64::NAN], 2.0), [1.5, 2.0]);
    }
}
