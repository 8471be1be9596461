//! Which transforms there are, what can be set, and what each needs. Not how they work.

use super::{AutoSmoothQuant, Awq, Clip, Loss, SmoothQuant};
use crate::options::{self, OptionError, OptionRow, Settings, Values};
use crate::registry::AlgorithmRow;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::{Arc, LazyLock};

/// A way to change weights before they are rounded, with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Transform {
    /// Scales from the largest magnitudes.
    SmoothQuant(SmoothQuant),
    /// Scales searched with quantized weights and inputs.
    AutoSmoothQuant(AutoSmoothQuant),
    /// Scales searched with quantized weights, then clipping thresholds.
    Awq(Awq),
}

/// What a transform must know of a layer's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Their largest magnitudes.
    Maxima,
    /// Their largest magnitudes, and runs of what the layer belongs to.
    MaximaAndRuns,
    /// Their mean magnitudes, runs of what the layer belongs to, and samples of inputs.
    MeansRunsAndSamples,
}

/// A transform that can be asked for by name.
pub type TransformRow = AlgorithmRow<Transform>;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct SmoothQuantOptions {
    alpha: f32,
    clamp_min: f32,
}

#[derive(Serialize, Deserialize)]
struct AutoSmoothQuantOptions {
    ratios: u32,
    loss: String,
}

#[derive(Serialize, Deserialize)]
struct AwqOptions {
    ratios: u32,
    duo: bool,
    clip: bool,
    /// Only where there is a search of clipping thresholds.
    tokens: Option<u32>,
}

const RATIOS: OptionRow = OptionRow { name: "ratios", values: Values::COUNT, about: "exponents that are tried" };

const SMOOTH_QUANT: &[OptionRow] = &[
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

const AUTO_SMOOTH_QUANT: &[OptionRow] = &[
    RATIOS,
    OptionRow {
        name: "loss",
        values: Values { text: "mse, mae or rmse", accepts: |text| Loss::named(text).is_some() },
        about: "how far outputs are from those of the float model",
    },
];

/// The options of AWQ, for checkpoints and graphs.
pub const AWQ_OPTIONS: &[OptionRow] = &[
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
    OptionRow { name: "tokens", values: Values::COUNT, about: "inputs that are sampled to search clipping thresholds" },
];

static TRANSFORMS: LazyLock<Vec<Arc<TransformRow>>> = LazyLock::new(|| {
    let row = |default: Transform, options: &'static [OptionRow], about: &'static str| {
        TransformRow::new(default.name(), about, options, default, move |given| default.with_options(options, given))
    };
    let smooth_quant = row(
        Transform::SmoothQuant(SmoothQuant::DEFAULTS),
        SMOOTH_QUANT,
        "moves outliers of inputs into weights, by the largest magnitudes of both",
    );
    let auto_smooth_quant = row(
        Transform::AutoSmoothQuant(AutoSmoothQuant::DEFAULTS),
        AUTO_SMOOTH_QUANT,
        "smoothquant by the exponent that changes the quantized block's outputs least",
    );
    let awq = row(
        Transform::Awq(Awq::DEFAULTS),
        AWQ_OPTIONS,
        "scales up the weights that large inputs meet, then clips weights, as outputs change least",
    );
    [
        smooth_quant.with_aliases(&["smooth"]).with_paper("arXiv 2211.10438"),
        auto_smooth_quant,
        awq.with_paper("arXiv 2306.00978"),
    ]
    .map(Arc::new)
    .to_vec()
});

/// Every transform, one row each.
pub fn rows() -> Vec<Arc<TransformRow>> {
    TRANSFORMS.clone()
}

/// The transform of a name, in any case of letters, with `-` or `_`.
pub fn named(name: &str) -> Option<Arc<TransformRow>> {
    TRANSFORMS.iter().find(|row| row.is_named(name)).cloned()
}

impl Transform {
    /// The spelling in commands, recipes and reports.
    pub fn name(&self) -> &'static str {
        match self {
            Transform::SmoothQuant(_) => "smoothquant",
            Transform::AutoSmoothQuant(_) => "autosmoothquant",
            Transform::Awq(_) => "awq",
        }
    }

    /// All of its settings as options are spelled.
    pub fn settings(&self) -> Settings {
        match *self {
            Transform::SmoothQuant(SmoothQuant { alpha, clamp_min }) => {
                options::shown(&SmoothQuantOptions { alpha, clamp_min })
            }
            Transform::AutoSmoothQuant(AutoSmoothQuant { ratios, loss }) => {
                options::shown(&AutoSmoothQuantOptions { ratios, loss: loss.name().to_owned() })
            }
            Transform::Awq(Awq { ratios, duo_scaling, clip }) => options::shown(&AwqOptions {
                ratios,
                duo: duo_scaling,
                clip: clip.is_some(),
                tokens: clip.map(|clip| clip.tokens as u32),
            }),
        }
    }

    fn with_options(self, rows: &[OptionRow], given: &[(&str, &str)]) -> Result<Transform, OptionError> {
        let name = self.name();
        Ok(match self {
            Transform::SmoothQuant(SmoothQuant { alpha, clamp_min }) => {
                let read = options::read(name, rows, &SmoothQuantOptions { alpha, clamp_min }, given)?;
                Transform::SmoothQuant(SmoothQuant { alpha: read.alpha, clamp_min: read.clamp_min })
            }
            Transform::AutoSmoothQuant(AutoSmoothQuant { ratios, loss }) => {
                let defaults = AutoSmoothQuantOptions { ratios, loss: loss.name().to_owned() };
                let read = options::read(name, rows, &defaults, given)?;
                let loss = Loss::named(&read.loss).ok_or_else(|| options::refused(name, rows, "loss", given))?;
                Transform::AutoSmoothQuant(AutoSmoothQuant { ratios: read.ratios, loss })
            }
            Transform::Awq(Awq { ratios, duo_scaling, clip }) => {
                let defaults = AwqOptions { ratios, duo: duo_scaling, clip: clip.is_some(), tokens: None };
                let read = options::read(name, rows, &defaults, given)?;
                if !read.clip && read.tokens.is_some() {
                    return Err(options::refused(name, rows, "tokens", given));
                }
                let usual = clip.unwrap_or(Clip::DEFAULTS);
                let tokens = read.tokens.map_or(usual.tokens, |tokens| tokens as usize);
                let clip = read.clip.then_some(Clip { tokens, ..usual });
                Transform::Awq(Awq { ratios: read.ratios, duo_scaling: read.duo, clip })
            }
        })
    }

    /// How many exponents it tries on each smoothing pair.
    pub fn trials(&self) -> u32 {
        match self {
            Transform::SmoothQuant(_) => 0,
            Transform::AutoSmoothQuant(auto) => auto.ratios,
            Transform::Awq(awq) => awq.ratios,
        }
    }

    /// What it must know of a layer's inputs.
    pub fn needs(&self) -> Needs {
        match self {
            Transform::SmoothQuant(_) => Needs::Maxima,
            Transform::AutoSmoothQuant(_) => Needs::MaximaAndRuns,
            Transform::Awq(_) => Needs::MeansRunsAndSamples,
        }
    }
}

impl fmt::Display for Transform {
    /// The name, and the settings that are not the default ones: `awq:clip=off`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let defaults = named(self.name()).map(|row| row.default.settings()).unwrap_or_default();
        for setting in self.settings().iter().filter(|setting| !defaults.contains(setting)) {
            write!(f, ":{}={}", setting.0, setting.1)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_names_and_reads_back_its_settings() {
        for row in rows() {
            assert_eq!((row.default.name(), row.default.to_string().as_str()), (&*row.name, &*row.name));
            for name in row.aliases.iter().copied().chain([&*row.name]) {
                assert_eq!(named(name).unwrap().default, row.default);
                assert!(crate::registry::TRANSFORM_NAMES.contains(&name), "{name}");
            }
            let settings = row.default.settings();
            let given: Vec<(&str, &str)> = settings.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            assert_eq!(row.read(&given).unwrap(), row.default);
            for option in row.options.iter() {
                for nonsense in ["", "x", "nan", "inf", "-1", "1e9", "ON"] {
                    assert!(row.read(&[(option.name, nonsense)]).is_err(), "{}:{}={nonsense}", row.name, option.name);
                }
            }
        }
        assert!(named("gptq").is_none());
        let needs: Vec<Needs> = rows().iter().map(|row| row.default.needs()).collect();
        assert_eq!(needs, [Needs::Maxima, Needs::MaximaAndRuns, Needs::MeansRunsAndSamples]);
    }

    #[test]
    fn tokens_without_a_search_of_thresholds_are_refused() {
        let awq = named("awq").unwrap();
        assert_eq!(awq.read(&[("tokens", "64")]).unwrap().to_string(), "awq:tokens=64");
        assert_eq!(awq.read(&[("clip", "off")]).unwrap().to_string(), "awq:clip=off");
        assert!(awq.read(&[("clip", "off"), ("tokens", "64")]).is_err());
    }
}
