//! The settings of AWQ, by the names that the other flow has for it.

use kvant_quant::options::{self, OptionError, Settings};
use kvant_quant::transform::{AWQ_OPTIONS, Awq, Clip};
use serde::{Deserialize, Serialize};

use super::{Algorithm, AlgorithmRow};

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AwqSettings {
    /// Exponents that are tried.
    pub ratios: u32,
    /// Whether scales are divided by a power of the weights' relative means too.
    pub duo: bool,
    /// The search of clipping thresholds that follows, if any.
    pub clip: Option<Clip>,
}

impl AwqSettings {
    /// Twenty exponents of the inputs alone, then clipping thresholds.
    pub const DEFAULTS: Self =
        Self { ratios: Awq::DEFAULTS.ratios, duo: Awq::DEFAULTS.duo_scaling, clip: Awq::DEFAULTS.clip };

    /// All of them as options are spelled.
    pub(super) fn shown(&self) -> Settings {
        let AwqSettings { ratios, duo, clip } = *self;
        let tokens = clip.map(|clip| clip.tokens as u32);
        options::shown(&Options { ratios, duo, clip: clip.is_some(), tokens })
    }

    fn read(given: &[(&str, &str)]) -> Result<Self, OptionError> {
        let AwqSettings { ratios, duo, clip } = Self::DEFAULTS;
        let read =
            options::read("awq", AWQ_OPTIONS, &Options { ratios, duo, clip: clip.is_some(), tokens: None }, given)?;
        if !read.clip && read.tokens.is_some() {
            return Err(options::refused("awq", AWQ_OPTIONS, "tokens", given));
        }
        let tokens = read.tokens.map_or(Clip::DEFAULTS.tokens, |tokens| tokens as usize);
        let clip = read.clip.then_some(Clip { tokens, ..Clip::DEFAULTS });
        Ok(Self { ratios: read.ratios, duo: read.duo, clip })
    }
}

/// The settings as options are spelled.
#[derive(Serialize, Deserialize)]
struct Options {
    ratios: u32,
    duo: bool,
    clip: bool,
    /// Only where there is a search of clipping thresholds.
    tokens: Option<u32>,
}

/// The row.
pub(super) fn row() -> AlgorithmRow {
    let about = "scales the inputs of products so that rounding their weights changes outputs least, then clips weights: for four bits";
    let row = AlgorithmRow::new("awq", about, AWQ_OPTIONS, Algorithm::Awq(AwqSettings::DEFAULTS), |given| {
        AwqSettings::read(given).map(Algorithm::Awq)
    });
    row.with_paper("arXiv 2306.00978")
}

#[cfg(test)]
mod tests {
    #[test]
    fn thresholds_are_searched_unless_they_are_switched_off() {
        let same = |text: &str| text.parse::<crate::algorithm::Algorithm>().map(|algorithm| algorithm.to_string());
        assert_eq!(same("awq:clip=on").unwrap(), "awq");
        assert_eq!(same("awq:clip=off:duo=on").unwrap(), "awq:duo=on:clip=off");
        assert_eq!(same("awq:tokens=64").unwrap(), "awq:tokens=64");
        assert!(same("awq:clip=off:tokens=64").is_err());
    }
}
