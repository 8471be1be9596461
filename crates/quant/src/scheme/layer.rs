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
    /// Computed for every batch; nothing is stored.
    Dynamic,
    /// Block scales computed for every batch, relative to a stored global scale.
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
    /// Returns whether calibration data is needed.
    pub fn needs_calibration(self) -> bool {
        self.timing != Timing::Dynamic
    }
}

/// How a linear layer is quantized. Spelled `weight[+input][+output]`, activations followed by `!static`, `!dynamic` or
/// `!local`: `e4m3:channel+e4m3:channel!dynamic`. A `-` means unquantized activations:
/// `e4m3:channel+-+e4m3:tensor!static`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerScheme {
    /// The weight.
    pub weight: TensorScheme,
    /// The input activations; `None` leaves them as they are.
    pub input: Option<ActivationScheme>,
    /// The output activations; `None` leaves them as they are.
    pub output: Option<ActivationScheme>,
}

impl LayerScheme {
    /// The weight alone.
    pub const fn weight_only(weight: TensorScheme) -> LayerScheme {
        LayerScheme { weight, input: None, output: None }
    }

    /// Returns whether calibration data is needed for the activations.
    pub fn needs_calibration(self) -> bool {
        [self.input, self.output].into_iter().flatten().any(ActivationScheme::needs_calibration)
    }
}

/// Stands for activations that stay as they are.
const UNTOUCHED: &str = "-";

impl fmt::Display for LayerScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.weight)?;
        match (self.input, self.output) {
            (None, None) => Ok(()),
            (Some(input), None) => write!(f, "+{input}"),
            (None, Some(output)) => write!(f, "+{UNTOUCHED}+{output}"),
            (Some(input), Some(output)) => write!(f, "+{input}+{output}"),
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
        let mut parts = text.splitn(3, '+');
        let weight: TensorScheme = parts.next().unwrap_or_default().parse()?;
        if let Some(reason) = weight.observer_refusal(true) {
            return Err(SchemeError::Observer {
                observer: weight.observer(),
                scheme: weight.to_string().into(),
                reason,
            });
        }
        let mut activation = || parts.next().filter(|part| *part != UNTOUCHED).map(str::parse).transpose();
        Ok(LayerScheme { weight, input: activation()?, output: activation()? })
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

impl Serialize for ActivationScheme {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ActivationScheme {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
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
    fn layer_scheme_spellings_round_trip() {
        for text in [
            "int4:g128",
            "e4m3:channel+e4m3:channel!dynamic",
            "int8:tensor+int8:tensor!static",
            "int8:tensor+int8:tensor:ema0.9!static",
            "e4m3:tensor+-+e4m3:tensor!static",
            "e4m3:tensor+e4m3:tensor!static+e4m3:tensor:percentile99.9!static",
        ] {
            assert_eq!(text.parse::<LayerScheme>().unwrap().to_string(), text);
        }
        for text in ["int4:g128+int8!sometimes", "int8+int8+int8+int8", "int8+", "-", "int8:tensor:ema0.9"] {
            assert!(text.parse::<LayerScheme>().is_err(), "{text}");
        }
        assert_eq!("int8+-".parse::<LayerScheme>(), "int8".parse());
    }

    #[test]
    fn static_and_local_inputs_need_calibration() {
        let needs = |text: &str| text.parse::<LayerScheme>().unwrap().needs_calibration();
        assert!(needs("int8:tensor+-+int8:tensor!static"));
        assert!(needs("int8:tensor+int8:tensor!static") && needs("e2m1:g16:e4m3:f32+e2m1:g16:e4m3:f32!local"));
        assert!(!needs("int4:g128") && !needs("mx6+mx6!dynamic"));
    }
}
