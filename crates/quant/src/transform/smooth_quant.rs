//! SmoothQuant (arXiv 2211.10438): a scale from the largest magnitudes of inputs and weights, without a search.

use super::algorithm::{Needs, Transform, TransformRow};
use super::error::{TransformError, finite, same_channels};
use super::problem::{PairError, PairProblem, PairScales};
use crate::options::{self, OptionRow, Settings, Values};
use serde::{Deserialize, Serialize};

/// The least largest magnitude of a column of weights, as in AMD Quark.
const LEAST_WEIGHT: f32 = 1e-5;

/// SmoothQuant with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct SmoothQuant {
    /// The share of the difficulty moved into the weights: from 0, none, to 1, all.
    pub alpha: f32,
    /// The least scale.
    pub clamp_min: f32,
}

impl SmoothQuant {
    /// As in the paper: difficulty is shared evenly.
    pub const DEFAULTS: SmoothQuant = SmoothQuant { alpha: 0.5, clamp_min: 1e-3 };

    /// `s_j = max(clamp_min, max|x_j|^alpha / max(1e-5, max|W_:j|)^(1 - alpha))`: the weights' columns are multiplied by it,
    /// and what feeds them is divided. A channel that was always zero gets `clamp_min`.
    ///
    /// # Errors
    /// A statistic that is NaN or infinite, or statistics of different channels.
    pub fn scales(&self, input_abs_max: &[f32], weight_abs_max: &[f32]) -> Result<Vec<f32>, TransformError> {
        same_channels(input_abs_max, weight_abs_max)?;
        finite("the largest magnitude", input_abs_max)?;
        finite("the largest weight", weight_abs_max)?;
        let scale = |(input, weight): (&f32, &f32)| {
            let ratio = input.powf(self.alpha) / weight.max(LEAST_WEIGHT).powf(1.0 - self.alpha);
            ratio.clamp(self.clamp_min.max(f32::MIN_POSITIVE), f32::MAX)
        };
        Ok(input_abs_max.iter().zip(weight_abs_max).map(scale).collect())
    }
}

const OPTIONS: &[OptionRow] = &[
    OptionRow {
        name: "alpha",
        values: Values::SHARE,
        about: "how much of the difficulty goes from inputs into weights",
    },
    OptionRow {
        name: "clamp-min",
        values: Values {
            text: "a number above 0 and up to 1",
            accepts: |text| options::is_number(text, f64::from(f32::MIN_POSITIVE), 1.0),
        },
        about: "the least scale",
    },
];

/// The row.
pub(super) fn row() -> TransformRow {
    let about = "moves outliers of inputs into weights, by the largest magnitudes of both";
    let row = TransformRow::of(SmoothQuant::DEFAULTS, OPTIONS, about);
    row.with_aliases(&["smooth", "smooth-quant"]).with_paper("arXiv 2211.10438")
}

impl Transform for SmoothQuant {
    fn name(&self) -> &str {
        "smoothquant"
    }

    fn settings(&self) -> Settings {
        options::shown(self)
    }

    fn needs(&self) -> Needs {
        Needs::Maxima
    }

    fn find(&self, pair: &mut dyn PairProblem) -> Result<PairScales, PairError> {
        let weights = pair.weights()?;
        let scales = self.scales(&pair.inputs().abs_max(), &weights.abs_max())?;
        Ok(PairScales { ratio: Some(self.alpha), ..PairScales::new(pair.within_rows(scales)?) })
    }

    fn quark_name(&self) -> Option<&'static str> {
        Some("smooth")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothquant_scales_match_the_formula_at_its_ends() {
        let (inputs, weights) = ([4.0, 0.0, 1e-6, 9.0], [1.0, 2.0, 0.5, 0.0]);
        let scales = |alpha| SmoothQuant { alpha, clamp_min: 1e-3 }.scales(&inputs, &weights).unwrap();
        assert_eq!(scales(1.0), [4.0, 1e-3, 1e-3, 9.0]);
        assert_eq!(scales(0.0), [1.0, 0.5, 2.0, 1e5]);
        let even = scales(0.5);
        assert!((even[0] - 2.0).abs() < 1e-6 && even[1] == 1e-3 && (even[3] / 3.0 / 1e5f32.sqrt() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn non_finite_statistics_are_refused_with_their_channel() {
        let refused = SmoothQuant::DEFAULTS.scales(&[1.0, f32::NAN], &[1.0, 1.0]);
        assert!(matches!(refused, Err(TransformError::NotFinite { channel: 1, .. })));
        let refused = SmoothQuant::DEFAULTS.scales(&[1.0, 1.0], &[f32::INFINITY, 1.0]);
        assert!(matches!(refused, Err(TransformError::NotFinite { channel: 0, .. })));
        let refused = SmoothQuant::DEFAULTS.scales(&[1.0], &[1.0, 1.0]);
        assert_eq!(refused, Err(TransformError::Channels { columns: 2, channels: 1 }));
    }
}
