//! One algorithm with its settings, as it is spelled: `gptq:damping=0.05:order=stored`.

use kvant_gguf::ftype::IMATRIX;
use kvant_quant::algorithm::{self, AnyRow};
use kvant_quant::bias_correction::{self, BiasCorrection};
use kvant_quant::options::{self, OptionError, OptionRow, Settings};
use kvant_quant::registry::AlgorithmRow as Row;
use kvant_quant::rotation::{self, Rotate};
use kvant_quant::rounding::{self, AnyRounding};
use kvant_quant::transform::{self, AnyTransform};
use kvant_quant::tuning::Tuning;
use kvant_weights::recipe_error::{RecipeError, quoted};
use std::fmt;

/// A rotation, a transform, a rounding, the tuning of what it chose, or the correction of biases.
#[derive(Clone, Debug, PartialEq)]
pub enum Algorithm {
    /// It rotates the model before anything else is done to it.
    Rotation(Rotate),
    /// It changes weights before they are rounded.
    Transform(AnyTransform),
    /// It chooses codes.
    Rounding(AnyRounding),
    /// It changes what was chosen for a whole block.
    Tuning(Tuning),
    /// It changes biases once codes are chosen.
    Correction(BiasCorrection),
}

/// An algorithm that can be selected.
#[derive(Clone, Debug)]
pub struct AlgorithmRow {
    /// The spelling without options.
    pub name: String,
    /// The algorithm with its default settings.
    pub algorithm: Algorithm,
    /// Its origin.
    pub paper: Option<String>,
    /// One line that explains it.
    pub about: String,
    /// Its options, each with its default value.
    pub options: Vec<(OptionRow, String)>,
}

impl AlgorithmRow {
    fn new<A>(row: &Row<A>, algorithm: Algorithm) -> AlgorithmRow {
        let settings = algorithm.settings();
        let value = |option: &OptionRow| settings.iter().find(|(name, _)| name == option.name);
        let options = row.options.iter().filter_map(|option| Some((*option, value(option)?.1.clone())));
        AlgorithmRow {
            name: row.name.to_string(),
            options: options.collect(),
            algorithm,
            paper: row.paper.as_ref().map(ToString::to_string),
            about: row.about.to_string(),
        }
    }
}

/// Algorithms that others have.
const ELSEWHERE: &[&str] = &["spinquant", "spqr", "quip", "svdquant", "twobitscalar", "omniquant", "aqlm"];

const LIST: &str = "`kvant list algorithms` shows all";

impl Algorithm {
    /// Every algorithm: transforms, roundings, tuning, and the correction of biases.
    pub fn table() -> Vec<AlgorithmRow> {
        let of_transform = |row: &Row<AnyTransform>| AlgorithmRow::new(row, Algorithm::Transform(row.default.clone()));
        let of_rounding = |row: &Row<AnyRounding>| AlgorithmRow::new(row, Algorithm::Rounding(row.default.clone()));
        let transforms = algorithm::transforms().into_iter().map(|row| of_transform(&row));
        let roundings = algorithm::roundings().into_iter().map(|row| of_rounding(&row));
        let correction = bias_correction::row();
        let correction = AlgorithmRow::new(&correction, Algorithm::Correction(correction.default));
        let of_tuning = |row: &Row<Tuning>| AlgorithmRow::new(row, Algorithm::Tuning(row.default));
        let tunings = algorithm::tunings().into_iter().map(|row| of_tuning(&row));
        let rotation = rotation::row();
        let rotation = AlgorithmRow::new(&rotation, Algorithm::Rotation(rotation.default));
        std::iter::once(rotation).chain(transforms).chain(roundings).chain(tunings).chain([correction]).collect()
    }

    /// The algorithm of a name with options and their values; `None` for an unknown name.
    ///
    /// # Errors
    /// If an option does not exist, is given twice, or does not accept its value.
    pub fn named(name: &str, given: &[(&str, &str)]) -> Option<Result<Algorithm, OptionError>> {
        Some(match algorithm::named(name)? {
            AnyRow::Rotation(row) => row.read(given).map(Algorithm::Rotation),
            AnyRow::Transform(row) => row.read(given).map(Algorithm::Transform),
            AnyRow::Rounding(row) => row.read(given).map(Algorithm::Rounding),
            AnyRow::Tuning(row) => row.read(given).map(Algorithm::Tuning),
            AnyRow::Correction(row) => row.read(given).map(Algorithm::Correction),
        })
    }

    /// Returns whether there is an algorithm of that name.
    pub fn exists(name: &str) -> bool {
        algorithm::named(name).is_some()
    }

    /// Returns whether it is an algorithm of other tools that Kvant lacks.
    pub fn is_elsewhere(name: &str) -> bool {
        ELSEWHERE.contains(&name.to_ascii_lowercase().as_str())
    }

    /// The algorithm that `text` spells: a name, then options, `:NAME=VALUE` each.
    ///
    /// # Errors
    /// *Invalid* for unknown algorithms, options or values; *unsupported* for algorithms that
    /// others have. Messages begin with `place`.
    pub fn find(place: &str, text: &str) -> Result<Algorithm, RecipeError> {
        let (name, given) = options::split(text);
        if name.is_empty() {
            let hint = "`kvant list algorithms` shows what there is; without any, leave the option out";
            return Err(RecipeError::invalid(place, "an algorithm without a name".to_owned(), hint));
        }
        let found = Algorithm::named(name, &given).ok_or_else(|| unknown(place, name))?;
        found.map_err(|problem| RecipeError::invalid(place, problem.to_string(), problem.hint()))
    }

    /// All of its settings, as options are spelled.
    pub fn settings(&self) -> Settings {
        match self {
            Algorithm::Rotation(rotation) => options::shown(rotation),
            Algorithm::Transform(transform) => transform.settings(),
            Algorithm::Rounding(rounding) => rounding.settings(),
            Algorithm::Tuning(tuning) => tuning.settings(),
            Algorithm::Correction(correction) => options::shown(correction),
        }
    }

    /// The spelling without options.
    pub fn name(&self) -> &str {
        match self {
            Algorithm::Rotation(_) => rotation::NAME,
            Algorithm::Transform(transform) => transform.name(),
            Algorithm::Rounding(rounding) => rounding.name(),
            Algorithm::Tuning(tuning) => tuning.name(),
            Algorithm::Correction(_) => bias_correction::NAME,
        }
    }

    /// The input statistics that it needs, in words.
    pub fn needs(&self) -> &'static str {
        match self {
            Algorithm::Rotation(rotation) if rotation.learns() => "gradients of the whole model",
            Algorithm::Rotation(_) => "nothing",
            Algorithm::Transform(transform) => match transform.needs() {
                transform::Needs::Maxima => "largest inputs",
                transform::Needs::MaximaAndRuns => "largest inputs, trial runs",
                transform::Needs::MeansRunsAndSamples => "mean inputs, trial runs",
            },
            Algorithm::Rounding(rounding) => match rounding.needs() {
                rounding::Needs::Nothing => "nothing",
                rounding::Needs::Hessian => "Hessians",
                rounding::Needs::InputMismatch | rounding::Needs::Outputs => "Hessians, float inputs",
            },
            Algorithm::Tuning(_) => "float outputs of blocks",
            Algorithm::Correction(_) => "mean inputs",
        }
    }

    /// Its cost besides a run of the calibration data through every block, in words.
    pub fn cost(&self) -> &'static str {
        match self {
            Algorithm::Rotation(rotation) if rotation.learns() => {
                "five runs of the whole model on a batch for each step"
            }
            Algorithm::Rotation(_) => "a small matrix product for each weight, not even that run",
            Algorithm::Transform(transform) => match transform.needs() {
                transform::Needs::Maxima => "little",
                transform::Needs::MaximaAndRuns | transform::Needs::MeansRunsAndSamples => {
                    "a run of half a block for each exponent"
                }
            },
            Algorithm::Rounding(rounding) => match rounding.needs() {
                rounding::Needs::Nothing if rounding.is_nearest() => "nothing, not even that run",
                rounding::Needs::Nothing => "rounds over the weights, not even that run",
                rounding::Needs::Hessian => "inputs^2 for each token and distinct input",
                rounding::Needs::InputMismatch => "about three times that of gptq",
                rounding::Needs::Outputs => "hundreds of times that of gptaq",
            },
            Algorithm::Tuning(_) => "three runs of the block on a batch for each step",
            Algorithm::Correction(_) => "little",
        }
    }
}

impl fmt::Display for Algorithm {
    /// The name, and the settings that are not the default ones.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Algorithm::Rotation(rotation) => rotation.fmt(f),
            Algorithm::Transform(transform) => transform.fmt(f),
            Algorithm::Rounding(rounding) => rounding.fmt(f),
            Algorithm::Tuning(tuning) => tuning.fmt(f),
            Algorithm::Correction(correction) => correction.fmt(f),
        }
    }
}

fn unknown(place: &str, name: &str) -> RecipeError {
    if Algorithm::is_elsewhere(name) {
        let reason = format!("the algorithm {} is not supported", quoted(name));
        let hint = match name.eq_ignore_ascii_case("spinquant") {
            true => "use `rotate:steps=100`, which learns its matrices in the same way",
            false => LIST,
        };
        return RecipeError::unsupported(place, reason, hint);
    }
    if name.eq_ignore_ascii_case(IMATRIX) {
        let hint = "ask for a GGUF file: ‹format› gguf, or a scheme such as Q4_K_M";
        return RecipeError::invalid(
            place,
            format!("the algorithm {} applies only to GGUF files", quoted(name)),
            hint.to_owned(),
        );
    }
    let lowered = name.to_ascii_lowercase();
    if algorithm::NAMES_OF_GRAPHS.contains(&lowered.as_str()) {
        return RecipeError::invalid(
            place,
            format!("the algorithm {} applies only to ONNX graphs", quoted(name)),
            format!("`smoothquant` and `awq` move scales between layers of checkpoints; {LIST}"),
        );
    }
    let rated = Algorithm::table().into_iter().map(|row| (strsim::damerau_levenshtein(&lowered, &row.name), row));
    let hint = match rated.min_by_key(|(distance, _)| *distance) {
        Some((distance, row)) if distance <= 2 && name.len() < 64 => format!("did you mean `{}`? {LIST}", row.name),
        _ => LIST.to_owned(),
    };
    RecipeError::invalid(place, format!("unknown algorithm {}", quoted(name)), hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::Diagnostic;

    fn find(text: &str) -> Result<Algorithm, RecipeError> {
        Algorithm::find("‹algorithm›", text)
    }

    #[test]
    fn algorithm_rows_are_found_and_spelled_by_name() {
        for row in Algorithm::table() {
            assert_eq!(find(&row.name).unwrap(), row.algorithm);
            assert_eq!(row.algorithm.to_string(), row.name);
            assert!(!row.algorithm.needs().is_empty() && !row.algorithm.cost().is_empty());
            let all: String = row.options.iter().map(|(option, value)| format!(":{}={value}", option.name)).collect();
            assert_eq!(find(&format!("{}{all}", row.name)).unwrap(), row.algorithm, "{all}");
        }
        assert_eq!(find("GPTQ").unwrap(), find("gptq").unwrap());
    }

    #[test]
    fn algorithm_mistakes_are_named() {
        let message = |text: &str| find(text).unwrap_err().to_string();
        assert_eq!(message("gptp"), "‹algorithm›: unknown algorithm `gptp`");
        assert!(find("gptp").unwrap_err().hint().unwrap().starts_with("did you mean `gptq`?"));
        assert_eq!(message("CLE"), "‹algorithm›: the algorithm `CLE` applies only to ONNX graphs");
        assert!(find("").unwrap_err().hint().unwrap().starts_with("`kvant list"));
        assert_eq!(message("gptq:clip=on"), "‹algorithm›: `gptq` has no option `clip`");
        assert_eq!(
            find("gptq:clip=on").unwrap_err().hint().unwrap(),
            "it has damping, order, groups, block, rounds: write them as in gptq:damping=..."
        );
        assert_eq!(find("rtn:order=stored").unwrap_err().hint().unwrap(), "it has no options");
        assert_eq!(message("gptq:damping=2"), "‹algorithm›: `2` is not a value of `gptq:damping`");
        assert_eq!(message("gptq:damping"), "‹algorithm›: `gptq:damping` has no value");
        assert_eq!(message(""), "‹algorithm›: an algorithm without a name");
        assert!(message("gptq:order=stored:order=stored").contains("twice"));
        assert_eq!(message("gptq:groups=dynamic"), "‹algorithm›: `dynamic` is not a value of `gptq:groups`");
        assert!(message(&"z".repeat(100_000)).len() < 250);
    }

    #[test]
    fn algorithms_of_other_tools_are_unsupported_not_invalid() {
        assert!(matches!(find("SpinQuant").unwrap_err(), RecipeError::Unsupported(_)));
    }
}
