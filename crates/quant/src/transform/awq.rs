//! AWQ (arXiv 2306.00978): the scales under which weight-only quantization changes a block's outputs least, then limits of
//! weights.

use super::algorithm::{AnyTransform, Needs, Transform, TransformRow};
use super::problem::{Measure, PairError, PairProblem, PairScales, search};
use super::{Candidate, Candidates, Clip, Loss, TransformError};
use crate::options::{self, OptionError, OptionRow, Settings, Values};
use serde::{Deserialize, Serialize};

/// AWQ with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Awq {
    /// The number of exponents tried.
    pub ratios: u32,
    /// Whether scales are divided by a power of the weights' relative means too, as llm-compressor and AutoAWQ may do.
    pub duo_scaling: bool,
    /// The search of limits that follows, if any.
    pub clip: Option<Clip>,
}

impl Awq {
    /// As in AMD Quark: twenty exponents of the inputs alone, then limits.
    pub const DEFAULTS: Awq = Awq { ratios: 20, duo_scaling: false, clip: Some(Clip::DEFAULTS) };

    /// How far outputs are from those of the float model: each trial weight is `Q(W s) / s`.
    pub const LOSS: Loss = Loss::Mse;

    /// The scales to try, of the [mean magnitudes](super::ChannelStatistic::abs_mean) of inputs and the
    /// [relative means](super::WeightStatistic::relative_mean) of weights, which count with
    /// [`duo_scaling`](Self::duo_scaling) only.
    ///
    /// # Errors
    /// A statistic that is NaN or infinite, or statistics of different channels.
    pub fn candidates<'a>(
        &self,
        input_mean: &'a [f32],
        weight_mean: &'a [f32],
    ) -> Result<Candidates<'a>, TransformError> {
        Candidates::new(input_mean, self.duo_scaling.then_some(weight_mean), self.ratios)
    }
}

/// The settings as options are spelled.
#[derive(Serialize, Deserialize)]
struct AwqOptions {
    ratios: u32,
    duo: bool,
    clip: bool,
    /// Only where there is a search of clipping thresholds.
    tokens: Option<u32>,
}

/// The option of searches of exponents.
pub(super) const RATIOS: OptionRow =
    OptionRow { name: "ratios", values: Values::COUNT, about: "exponents that are tried" };

const NAME: &str = "awq";

impl Awq {
    /// The options, for checkpoints and graphs.
    pub const OPTIONS: &[OptionRow] = &[
        RATIOS,
        OptionRow {
            name: "duo",
            values: Values::SWITCH,
            about: "whether scales are divided by a power of the weights' means too",
        },
        OptionRow {
            name: "clip",
            values: Values::SWITCH,
            about: "whether clipping thresholds of weights are searched after scales",
        },
        OptionRow {
            name: "tokens",
            values: Values::COUNT,
            about: "inputs that are sampled to search clipping thresholds",
        },
    ];

    /// The default settings but for the options that are given.
    ///
    /// # Errors
    /// Where an option does not exist, is given twice, does not take its value, or says something of a search that is off.
    pub fn read(given: &[(&str, &str)]) -> Result<Awq, OptionError> {
        let Awq { ratios, duo_scaling, clip } = Awq::DEFAULTS;
        let defaults = AwqOptions { ratios, duo: duo_scaling, clip: clip.is_some(), tokens: None };
        let read = options::read(NAME, Awq::OPTIONS, &defaults, given)?;
        if !read.clip && read.tokens.is_some() {
            return Err(options::refused(NAME, Awq::OPTIONS, "tokens", given));
        }
        let tokens = read.tokens.map_or(Clip::DEFAULTS.tokens, |tokens| tokens as usize);
        let clip = read.clip.then_some(Clip { tokens, ..Clip::DEFAULTS });
        Ok(Awq { ratios: read.ratios, duo_scaling: read.duo, clip })
    }
}

/// The row.
pub(super) fn row() -> TransformRow {
    let about = "scales up the weights that large inputs meet, then clips weights, as outputs change least";
    let row = TransformRow::new(NAME, about, Awq::OPTIONS, Awq::DEFAULTS.into(), |given| {
        Awq::read(given).map(AnyTransform::from)
    });
    row.with_paper("arXiv 2306.00978")
}

impl Transform for Awq {
    fn name(&self) -> &str {
        NAME
    }

    fn settings(&self) -> Settings {
        let tokens = self.clip.map(|clip| clip.tokens as u32);
        options::shown(&AwqOptions { ratios: self.ratios, duo: self.duo_scaling, clip: self.clip.is_some(), tokens })
    }

    fn needs(&self) -> Needs {
        Needs::MeansRunsAndSamples
    }

    fn trials(&self) -> u32 {
        self.ratios
    }

    fn measure(&self) -> Measure {
        Measure { loss: Awq::LOSS, with_inputs: false }
    }

    fn find(&self, pair: &mut dyn PairProblem) -> Result<PairScales, PairError> {
        let relative = if self.duo_scaling { pair.weights()?.relative_mean() } else { Vec::new() };
        let means = pair.inputs().abs_mean();
        let candidates: Vec<Candidate> = self.candidates(&means, &relative)?.collect();
        search(pair, candidates, self.measure())
    }

    fn clip(&self) -> Option<Clip> {
        self.clip
    }

    fn quark_name(&self) -> Option<&'static str> {
        Some(NAME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clip_tokens_with_clip_off_are_refused() {
        let row = row();
        assert_eq!(row.read(&[("tokens", "64")]).unwrap().to_string(), "awq:tokens=64");
        assert_eq!(row.read(&[("clip", "off")]).unwrap().to_string(), "awq:clip=off");
        assert!(row.read(&[("clip", "off"), ("tokens", "64")]).is_err());
    }
}
