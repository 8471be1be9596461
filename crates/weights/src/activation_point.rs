//! Points of the forward pass whose activations are quantized with calibrated parameters. Not the calibration: see
//! `kvant_checkpoint::calibration`.

use kvant_numeric::ComputeDType;
use kvant_quant::activation::StaticParameters;
use kvant_quant::scheme::{ActivationScheme, MinScale};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use xxhash_rust::xxh3::xxh3_128;

/// A place in the forward pass. Modules have the names of the source; experts that are one tensor there are
/// `experts.3.gate_up_proj`.
///
/// Spelled `input:model.layers.0.mlp.up_proj`, `key:0`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ActivationPoint {
    /// The input of a linear layer.
    Input(String),
    /// The output of a linear layer.
    Output(String),
    /// The keys of a block as they are cached: after norm and rotary embedding.
    Key(usize),
    /// The values of a block as they are cached.
    Value(usize),
    /// The queries of a block, after norm and rotary embedding.
    Query(usize),
    /// The output of a block's softmax.
    Probabilities(usize),
}

impl fmt::Display for ActivationPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ActivationPoint::Input(module) => write!(f, "input:{module}"),
            ActivationPoint::Output(module) => write!(f, "output:{module}"),
            ActivationPoint::Key(block) => write!(f, "key:{block}"),
            ActivationPoint::Value(block) => write!(f, "value:{block}"),
            ActivationPoint::Query(block) => write!(f, "query:{block}"),
            ActivationPoint::Probabilities(block) => write!(f, "probabilities:{block}"),
        }
    }
}

/// The text names no place.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not an activation point")]
pub struct UnknownActivationPoint(pub String);

impl FromStr for ActivationPoint {
    type Err = UnknownActivationPoint;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownActivationPoint(text.to_owned());
        let (kind, rest) = text.split_once(':').ok_or_else(unknown)?;
        let block = || rest.parse().map_err(|_| unknown());
        Ok(match kind {
            "input" => ActivationPoint::Input(rest.to_owned()),
            "output" => ActivationPoint::Output(rest.to_owned()),
            "key" => ActivationPoint::Key(block()?),
            "value" => ActivationPoint::Value(block()?),
            "query" => ActivationPoint::Query(block()?),
            "probabilities" => ActivationPoint::Probabilities(block()?),
            _ => return Err(unknown()),
        })
    }
}

impl TryFrom<String> for ActivationPoint {
    type Error = UnknownActivationPoint;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<ActivationPoint> for String {
    fn from(site: ActivationPoint) -> String {
        site.to_string()
    }
}

/// A place, and what must be found there.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedActivationPoint {
    /// The place.
    pub site: ActivationPoint,
    /// The scheme of its activations, including the observer.
    pub scheme: ActivationScheme,
    /// The precision of the model there, in which scales are computed.
    pub arithmetic: ComputeDType,
    /// Features of a row.
    pub features: usize,
    /// Points with the same number read the same activations, or parts of them: an unobserved point takes
    /// the range of the others.
    pub scale_group: Option<usize>,
    /// Whether its whole group has one scale, that of the joined ranges.
    pub shares: bool,
    /// The least scale.
    pub min_scale: MinScale,
}

/// The parameters of all places of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    sites: BTreeMap<ActivationPoint, StaticParameters>,
}

impl Parameters {
    /// The parameters of these places.
    pub fn new(sites: impl IntoIterator<Item = (ActivationPoint, StaticParameters)>) -> Parameters {
        Parameters { sites: sites.into_iter().collect() }
    }

    /// The parameters of a point.
    pub fn get(&self, site: &ActivationPoint) -> Option<&StaticParameters> {
        self.sites.get(site)
    }

    /// All places with their parameters.
    pub fn iter(&self) -> impl Iterator<Item = (&ActivationPoint, &StaticParameters)> {
        self.sites.iter()
    }

    /// A hash of all bits: what has another one gives another output.
    pub fn hash(&self) -> u128 {
        let mut bytes = Vec::new();
        for (site, parameters) in &self.sites {
            bytes.extend(site.to_string().into_bytes());
            for values in [&parameters.scales, &parameters.zero_points] {
                bytes.extend((values.len() as u64).to_le_bytes());
                values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
            }
        }
        xxh3_128(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activation_point_spellings_round_trip() {
        for text in
            ["input:model.layers.0.mlp.up_proj", "output:a:b", "key:0", "value:17", "query:3", "probabilities:1"]
        {
            assert_eq!(text.parse::<ActivationPoint>().unwrap().to_string(), text);
            let json = serde_json::to_string(&text.parse::<ActivationPoint>().unwrap()).unwrap();
            assert_eq!(serde_json::from_str::<ActivationPoint>(&json).unwrap().to_string(), text);
        }
        for text in ["", "key", "key:-1", "keys:0", "module"] {
            assert!(text.parse::<ActivationPoint>().is_err(), "{text}");
        }
    }
}
