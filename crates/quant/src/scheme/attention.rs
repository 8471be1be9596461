//! The scheme of attention: how keys, values, queries and probabilities are quantized. Not that of the linear layers
//! around it: see [`LayerScheme`](super::LayerScheme).

use super::{ActivationScheme, SchemeError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The point before the cache at which keys are quantized, and queries with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rotary {
    /// Before the rotary embedding: as the outputs of the layers that make them.
    #[default]
    Before,
    /// After the rotary embedding: as the cache stores them.
    After,
}

/// The least scale of keys and values: finite, not negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f32", into = "f32")]
pub struct MinScale(f32);

impl MinScale {
    /// The scale.
    pub fn value(self) -> f32 {
        self.0
    }
}

// It is never NaN.
impl Eq for MinScale {}

impl TryFrom<f32> for MinScale {
    type Error = SchemeError;

    fn try_from(scale: f32) -> Result<Self, SchemeError> {
        if scale >= 0.0 && scale.is_finite() { Ok(MinScale(scale)) } else { Err(SchemeError::MinScale) }
    }
}

impl From<MinScale> for f32 {
    fn from(scale: MinScale) -> f32 {
        scale.0
    }
}

impl FromStr for MinScale {
    type Err = SchemeError;

    fn from_str(text: &str) -> Result<Self, SchemeError> {
        text.parse::<f32>().map_err(|_| SchemeError::MinScale)?.try_into()
    }
}

impl fmt::Display for MinScale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How keys and values are quantized for the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCacheScheme {
    /// The scheme of each.
    pub scheme: ActivationScheme,
    /// The least scale.
    pub min_scale: MinScale,
}

/// How the activations inside attention are quantized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttentionScheme {
    /// The point where keys, and queries with them, are quantized.
    pub rotary: Rotary,
    /// Keys and values; `None` leaves them as they are.
    pub key_value: Option<KvCacheScheme>,
    /// Queries.
    pub query: Option<ActivationScheme>,
    /// The output of the softmax.
    pub probabilities: Option<ActivationScheme>,
}

impl AttentionScheme {
    /// Returns whether nothing is quantized.
    pub fn is_empty(&self) -> bool {
        self.schemes().next().is_none()
    }

    /// Returns whether calibration data is needed.
    pub fn needs_calibration(&self) -> bool {
        self.schemes().any(ActivationScheme::needs_calibration)
    }

    fn schemes(&self) -> impl Iterator<Item = ActivationScheme> {
        let key_value = self.key_value.map(|key_value| key_value.scheme);
        [key_value, self.query, self.probabilities].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn min_scale_must_be_a_finite_number() {
        assert_eq!("0.5".parse::<MinScale>().unwrap().to_string(), "0.5");
        for text in ["-1", "NaN", "inf", "", "x"] {
            assert_eq!(text.parse::<MinScale>(), Err(SchemeError::MinScale), "{text}");
        }
    }

    #[test]
    fn static_attention_needs_calibration() {
        let mut attention = AttentionScheme::default();
        assert!(attention.is_empty() && !attention.needs_calibration());
        attention.query = Some("e4m3:tensor!dynamic".parse().unwrap());
        assert!(!attention.is_empty() && !attention.needs_calibration());
        attention.probabilities = Some("e4m3:tensor!static".parse().unwrap());
        assert!(attention.needs_calibration());
    }
}
