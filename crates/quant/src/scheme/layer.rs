//! The scheme of a layer: its weight, its inputs, its outputs. Not which layers there are.

use super::{SchemeError, TensorScheme};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// When the scales of activations are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Timing {
    /// From calibration data, once; stored in the checkpoint.
    Static,
    /// From every batch anew; nothing is stored.
    Dynamic,
    /// Block scales from every batch anew under a stored scale of the tensor.
    Local,
}

/// How activations are quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActivationScheme {
    /// The scheme of the `[tokens, features]` matrix; a channel of axis 0 is a token.
    pub scheme: TensorScheme,
    /// When scales are found.
    pub timing: Timing,
}

impl ActivationScheme {
    /// Whether calibration data is needed.
    pub fn needs_calibration(self) -> bool {
        self.timing != Timing::Dynamic
    }
}

/// How a linear layer is quantized. Spelled `weight[+input][+output]`, activations followed by `!static`, `!dynamic` or
/// `!local`: `e4m3:channel+e4m3:channel!dynamic`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerScheme {
    /// The weight.
    pub weight: TensorScheme,
    /// The input activations; `None` leaves them as they are.
    pub input: Option<ActivationScheme>,
}

impl LayerScheme {
    /// The weight alone.
    pub const fn weight_only(weight: TensorScheme) -> LayerScheme {
        LayerScheme { weight, input: None }
    }

    /// Whether calibration data is needed for the activations.
    pub fn needs_calibration(self) -> bool {
        self.input.is_some_and(ActivationScheme::needs_calibration)
    }
}

impl fmt::Display for LayerScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.weight)?;
        match self.input {
            Some(input) => write!(f, "+{input}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ActivationScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timing = match self.timing {
            Timing::Static => "static",
            Timing::Dynamic => "dynamic",
            Timing::Local => "local",
        };
        write!(f, "{}!{timing}", self.scheme)
    }
}

impl FromStr for LayerScheme {
    type Err = SchemeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('+') {
            Some((weight, input)) => Ok(LayerScheme { weight: weight.parse()?, input: Some(input.parse()?) }),
            None => Ok(LayerScheme::weight_only(text.parse()?)),
        }
    }
}

impl FromStr for ActivationScheme {
    type Err = SchemeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (scheme, timing) = text.split_once('!').unwrap_or((text, "dynamic"));
        let timing = match timing {
            "static" => Timing::Static,
            "dynamic" => Timing::Dynamic,
            "local" => Timing::Local,
            other => {
                return Err(SchemeError::Spelling { text: text.to_owned(), part: other.to_owned() });
            }
        };
        Ok(ActivationScheme { scheme: scheme.parse()?, timing })
    }
}

impl Serialize for LayerScheme {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LayerScheme {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_round_trip() {
        for text in ["int4:g128", "e4m3:channel+e4m3:channel!dynamic", "int8:tensor+int8:tensor!static"] {
            assert_eq!(text.parse::<LayerScheme>().unwrap().to_string(), text);
        }
        assert!("int4:g128+int8!sometimes".parse::<LayerScheme>().is_err());
    }

    #[test]
    fn static_and_local_inputs_need_data() {
        let needs = |text: &str| text.parse::<LayerScheme>().unwrap().needs_calibration();
        assert!(needs("int8:tensor+int8:tensor!static") && needs("e2m1:g16:e4m3:f32+e2m1:g16:e4m3:f32!local"));
        assert!(!needs("int4:g128") && !needs("mx6+mx6!dynamic"));
    }
}
