//! How much time a result is worth: each level stands for scales and algorithms, chosen for the schemes of a recipe by what was measured
//! (docs/benchmarks/algorithms.md, "Quality levels").

use kvant_gguf::ftype::Ftype;
use kvant_numeric::format::MiniFloat;
use kvant_quant::observer::ObserverRef;
use kvant_quant::scheme::{ActivationScheme, FloatScale, FloatScheme, LayerScheme, TensorScheme};
use std::fmt;
use std::str::FromStr;

/// A level of quality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QualityLevel {
    /// What needs no data and takes seconds.
    Fast,
    /// What costs at most three times as much as GPTQ.
    Balanced,
    /// What has the least loss, whatever it costs.
    Best,
}

/// The levels with their names and what they stand for, from the least on.
pub const QUALITY_LEVELS: [(QualityLevel, &str, &str); 3] = [
    (QualityLevel::Fast, "fast", "Searched scales where they pay off; needs no data but for static activations"),
    (QualityLevel::Balanced, "balanced", "The best within three times the time of GPTQ"),
    (
        QualityLevel::Best,
        "best",
        "The least loss, in hundreds of times the time of GPTQ for integers of at most four bits, and for MXFP4 and NVFP4 with inputs in the same",
    ),
];

impl QualityLevel {
    /// The next lower level.
    pub fn lower(self) -> Option<QualityLevel> {
        match self {
            QualityLevel::Fast => None,
            QualityLevel::Balanced => Some(QualityLevel::Fast),
            QualityLevel::Best => Some(QualityLevel::Balanced),
        }
    }

    /// Scales and algorithms for layers of these schemes, in a mixture of experts or a dense model.
    pub fn choose(self, schemes: &[LayerScheme], has_experts: bool) -> QualityChoice {
        let weights = || schemes.iter().map(|scheme| scheme.weight);
        let is_narrow = weights().any(|weight| bits(weight).is_some_and(|bits| bits <= MOST_BITS));
        let is_searched = is_narrow && weights().any(gains_by_search) && weights().all(may_be_searched);
        let has_static_integers = schemes
            .iter()
            .filter_map(|scheme| scheme.input)
            .any(|input| input.needs_calibration() && matches!(input.scheme, TensorScheme::Int(_)));
        let tuned = if self == QualityLevel::Best { tuned(schemes) } else { None };
        let mut algorithms = Vec::new();
        if self > QualityLevel::Fast {
            let smoothing = if self == QualityLevel::Best && !has_experts { "autosmoothquant" } else { "smoothquant" };
            algorithms.extend(has_static_integers.then_some(smoothing));
            let refined = if is_narrow { &[REFINED][..] } else { &[] };
            algorithms.extend(tuned.unwrap_or(refined));
        }
        let fill_up = tuned.is_some().then_some(TUNED_TOKENS);
        QualityChoice { scales: is_searched.then_some(ObserverRef::SEARCH), algorithms, fill_up }
    }

    /// The same for a GGUF file.
    pub fn choose_for_file(self, ftype: Ftype) -> QualityChoice {
        let is_exact =
            matches!(ftype, Ftype::F32 | Ftype::F16 | Ftype::BF16 | Ftype::Q8_0 | Ftype::TQ1_0 | Ftype::TQ2_0);
        let algorithms = if is_exact || self == QualityLevel::Fast { Vec::new() } else { vec![REFINED] };
        QualityChoice { scales: None, algorithms, fill_up: None }
    }
}

/// The best rounding: a tenth more time than plain Qronos.
const REFINED: &str = "qronos:rounds=4";

/// Tuning of weights, scales and norms, in as many steps as were seen to help.
const TUNED: &str = "tune:weights=on:iterations=600";

/// Learned rounding, which loses no more at NVFP4 with inputs in the same, and leaves norms as they are.
const LEARNED: &str = "autoround:iterations=600";

/// Weights of more bits lose hardly anything however they are rounded.
const MOST_BITS: u32 = 6;

/// Integers of at most so many bits lose less where they are tuned after Qronos has chosen their codes.
const TUNED_BITS: u32 = 4;

/// Inputs of at least so many bits were measured beside tuned integers.
const INPUT_BITS: u32 = 8;

/// Tuning fits fewer tokens of calibration data than these too closely: it loses less if the model writes the rest of them.
const TUNED_TOKENS: usize = 32 << 10;

/// Bits of a code, in schemes with codes that algorithms choose.
fn bits(weight: TensorScheme) -> Option<u32> {
    match weight {
        TensorScheme::Int(int) => Some(int.format.bits()),
        TensorScheme::Float(float) => Some(float.format.bits()),
        TensorScheme::Progressive { second, .. } => Some(second.format.bits()),
        TensorScheme::Block(_) | TensorScheme::Cast(_) | TensorScheme::Gguf(_) => None,
    }
}

/// Returns whether searched scales were seen to lose less: those of MX formats, which are powers of two, do not.
fn gains_by_search(weight: TensorScheme) -> bool {
    match weight {
        TensorScheme::Int(_) => true,
        TensorScheme::Float(FloatScheme { scale, .. }) => !matches!(scale, FloatScale::E8m0(_)),
        _ => false,
    }
}

/// The algorithms that end in tuning, where they were seen to lose less than without: for integers beside inputs in float or in eight
/// bits with scales found at run time, and for MXFP4 and NVFP4 beside inputs in the same.
fn tuned(schemes: &[LayerScheme]) -> Option<&'static [&'static str]> {
    let is_small = |scheme: &LayerScheme| {
        let reads_closely = |input: ActivationScheme| {
            !input.needs_calibration() && bits(input.scheme).is_some_and(|bits| bits >= INPUT_BITS)
        };
        scheme.input.is_none_or(reads_closely)
            && matches!(scheme.weight, TensorScheme::Int(int) if int.format.bits() <= TUNED_BITS)
    };
    let is_fp4 = |scheme: &LayerScheme, fits: fn(FloatScale) -> bool| {
        let both = [Some(scheme.weight), scheme.input.map(|input| input.scheme)];
        both.into_iter().all(|scheme| scheme.and_then(fp4_scale).is_some_and(fits))
    };
    let is_mxfp4 = |scheme: &LayerScheme| {
        let is_dynamic = scheme.input.is_some_and(|input| !input.needs_calibration());
        is_dynamic && is_fp4(scheme, |scale| matches!(scale, FloatScale::E8m0(_)))
    };
    let is_nvfp4 = |scheme: &LayerScheme| is_fp4(scheme, |scale| scale == FloatScale::E4m3WithGlobal);
    match schemes {
        [] => None,
        _ if schemes.iter().all(is_small) => Some(&[REFINED, TUNED]),
        _ if schemes.iter().all(is_mxfp4) => Some(&["awq", TUNED]),
        _ if schemes.iter().all(is_nvfp4) => Some(&["awq", REFINED, LEARNED]),
        _ => None,
    }
}

/// The scale of codes in E2M1.
fn fp4_scale(scheme: TensorScheme) -> Option<FloatScale> {
    match scheme {
        TensorScheme::Float(FloatScheme { format: MiniFloat::E2M1, scale, .. }) => Some(scale),
        _ => None,
    }
}

fn may_be_searched(weight: TensorScheme) -> bool {
    weight.with_observer(ObserverRef::SEARCH).to_string().parse::<TensorScheme>().is_ok()
}

/// What a level stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QualityChoice {
    /// The observer that finds the scales of weights; that of the schemes if absent.
    pub scales: Option<ObserverRef>,
    /// The algorithms in order. Empty for rounding to nearest.
    pub algorithms: Vec<&'static str>,
    /// Tokens of calibration data, if the algorithms lose less where the model writes what the user's data lack of them.
    pub fill_up: Option<usize>,
}

impl fmt::Display for QualityChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.algorithms.as_slice() {
            [] => f.write_str("rounding to nearest")?,
            list => f.write_str(&list.join(","))?,
        }
        match self.scales {
            Some(_) => f.write_str(" with searched scales"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for QualityLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = QUALITY_LEVELS.iter().find(|(level, ..)| level == self);
        f.write_str(row.map_or("", |(_, name, _)| name))
    }
}

impl FromStr for QualityLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<QualityLevel, String> {
        let row = QUALITY_LEVELS.iter().find(|(_, name, _)| *name == text);
        let names = || QUALITY_LEVELS.map(|(_, name, _)| name).join(", ");
        row.map(|(level, ..)| *level).ok_or_else(|| format!("use one of {}", names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(level: &str, schemes: &[&str]) -> String {
        let schemes: Vec<LayerScheme> = schemes.iter().map(|text| text.parse().unwrap()).collect();
        level.parse::<QualityLevel>().unwrap().choose(&schemes, false).to_string()
    }

    #[test]
    fn levels_choose_by_scheme() {
        let (rtn, searched) = ("rounding to nearest", "rounding to nearest with searched scales");
        let (refined, searched_refined) = ("qronos:rounds=4", "qronos:rounds=4 with searched scales");
        let tuned = "qronos:rounds=4,tune:weights=on:iterations=600 with searched scales";
        for (scheme, expected) in [
            ("int4:g128", [searched, searched_refined, tuned]),
            ("int3:g128", [searched, searched_refined, tuned]),
            ("int2:g64:zp", [searched, searched_refined, tuned]),
            ("int6:g64", [searched, searched_refined, searched_refined]),
            ("int2:g64+int8:token!dynamic", [searched, searched_refined, tuned]),
            ("int4:g64+int4:token!dynamic", [searched, searched_refined, searched_refined]),
            ("int5:g64", [searched, searched_refined, searched_refined]),
            ("e2m1:g32:e8m0", [rtn, refined, refined]),
            ("e2m1:g32:e8m0+e2m1:g32:e8m0!dynamic", [rtn, refined, "awq,tune:weights=on:iterations=600"]),
            ("e2m1:g16:e4m3:f32", [searched, searched_refined, searched_refined]),
            (
                "e2m1:g16:e4m3:f32+e2m1:g16:e4m3:f32!local",
                [searched, searched_refined, "awq,qronos:rounds=4,autoround:iterations=600 with searched scales"],
            ),
            ("int8:channel", [rtn, rtn, rtn]),
            ("e4m3:channel+e4m3:token!dynamic", [rtn, rtn, rtn]),
            ("int8:channel+int8:tensor!static", [rtn, "smoothquant", "autosmoothquant"]),
            ("mx9", [rtn, rtn, rtn]),
        ] {
            let found = ["fast", "balanced", "best"].map(|level| chosen(level, &[scheme]));
            assert_eq!(found, expected, "{scheme}");
        }
        let smoothed = "smoothquant,qronos:rounds=4 with searched scales";
        assert_eq!(chosen("balanced", &["int4:g128+int8:tensor!static"]), smoothed);
        let scheme: LayerScheme = "int8:channel+int8:tensor!static".parse().unwrap();
        assert_eq!(QualityLevel::Best.choose(&[scheme], true).to_string(), "smoothquant");
        // The narrowest layers decide on algorithms.
        assert_eq!(chosen("best", &["int8:channel", "int2:g64"]), "qronos:rounds=4 with searched scales");
    }

    #[test]
    fn files_of_few_bits_get_error_feedback() {
        let chosen = |level: QualityLevel, ftype: Ftype| level.choose_for_file(ftype).to_string();
        assert_eq!(chosen(QualityLevel::Balanced, Ftype::Q4_K_M), "qronos:rounds=4");
        assert_eq!(chosen(QualityLevel::Fast, Ftype::Q4_K_M), "rounding to nearest");
        assert_eq!(chosen(QualityLevel::Best, Ftype::Q8_0), "rounding to nearest");
    }

    #[test]
    fn names_are_read_as_they_are_shown() {
        for (level, name, _) in QUALITY_LEVELS {
            assert_eq!((level.to_string().as_str(), name.parse()), (name, Ok(level)));
        }
        assert_eq!("good".parse::<QualityLevel>(), Err("use one of fast, balanced, best".to_owned()));
    }
}
