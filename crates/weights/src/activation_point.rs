//! Places of the forward pass whose activations are quantized with parameters that calibration finds. Not the finding: see
//! `kvant_checkpoint::calibration`.

use kvant_numeric::Arithmetic;
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
pub enum Site {
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

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Site::Input(module) => write!(f, "input:{module}"),
            Site::Output(module) => write!(f, "output:{module}"),
            Site::Key(block) => write!(f, "key:{block}"),
            Site::Value(block) => write!(f, "value:{block}"),
            Site::Query(block) => write!(f, "query:{block}"),
            Site::Probabilities(block) => write!(f, "probabilities:{block}"),
        }
    }
}

/// The text names no place.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is no place of activations")]
pub struct UnknownSite(pub String);

impl FromStr for Site {
    type Err = UnknownSite;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownSite(text.to_owned());
        let (kind, rest) = text.split_once(':').ok_or_else(unknown)?;
        let block = || rest.parse().map_err(|_| unknown());
        Ok(match kind {
            "input" => Site::Input(rest.to_owned()),
            "output" => Site::Output(rest.to_owned()),
            "key" => Site::Key(block()?),
            "value" => Site::Value(block()?),
            "query" => Site::Query(block()?),
            "probabilities" => Site::Probabilities(block()?),
            _ => return Err(unknown()),
        })
    }
}

impl TryFrom<String> for Site {
    type Error = UnknownSite;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Site> for String {
    fn from(site: Site) -> String {
        site.to_string()
    }
}

/// A place, and what must be found there.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedSite {
    /// The place.
    pub site: Site,
    /// How its activations are quantized; the observer is part of it.
    pub scheme: ActivationScheme,
    /// The precision of the model there, in which scales are computed.
    pub arithmetic: Arithmetic,
    /// Features of a row.
    pub features: usize,
    /// Places with the same number read the same activations, or a part of them each: one of which nothing was seen takes
    /// the range of the others.
    pub kin: Option<usize>,
    /// Whether all of its kin have one scale, that of the joined ranges.
    pub shares: bool,
    /// The least scale.
    pub min_scale: MinScale,
}

/// The parameters of all places of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    sites: BTreeMap<Site, StaticParameters>,
}

impl Parameters {
    /// The parameters of these places.
    pub fn new(sites: impl IntoIterator<Item = (Site, StaticParameters)>) -> Parameters {
        Parameters { sites: sites.into_iter().collect() }
    }

    /// Those of a place.
    pub fn get(&self, site: &Site) -> Option<&StaticParameters> {
        self.sites.get(site)
    }

    /// All places with their parameters.
    pub fn iter(&self) -> impl Iterator<Item = (&Site, &StaticParameters)> {
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
    fn spellings_round_trip() {
        for text in
            ["input:model.layers.0.mlp.up_proj", "output:a:b", "key:0", "value:17", "query:3", "probabilities:1"]
        {
            assert_eq!(text.parse::<Site>().unwrap().to_string(), text);
            let json = serde_json::to_string(&text.parse::<Site>().unwrap()).unwrap();
            assert_eq!(serde_json::from_str::<Site>(&json).unwrap().to_string(), text);
        }
        for text in ["", "key", "key:-1", "keys:0", "module"] {
            assert!(text.parse::<Site>().is_err(), "{text}");
        }
    }
}
