//! One algorithm with its settings, as it is spelled: `gptq:damping=0.05:order=stored`.

use super::options::{ALGORITHM_OPTIONS, AlgorithmOption};
use crate::ftype::IMATRIX;
use crate::recipe_error::{RecipeError, quoted};
use kvant_quant::rounding::{self, Rounding};
use kvant_quant::transform::{self, Transform};
use std::fmt;

/// A transform or a rounding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm {
    /// It changes weights before they are rounded.
    Transform(Transform),
    /// It chooses codes.
    Rounding(Rounding),
}

/// What is to be said of an algorithm.
#[derive(Clone, Copy, Debug)]
pub struct AlgorithmRow {
    /// The spelling without options.
    pub name: &'static str,
    /// The algorithm with its usual settings.
    pub algorithm: Algorithm,
    /// Where it is from.
    pub paper: Option<&'static str>,
    /// One line that explains it.
    pub about: &'static str,
}

/// Algorithms that others have.
const ELSEWHERE: &[&str] = &[
    "autoround",
    "quarot",
    "rotation",
    "signround",
    "spinquant",
    "spqr",
    "quip",
    "svdquant",
    "twobitscalar",
    "omniquant",
    "aqlm",
];

const LIST: &str = "`kvant list algorithms` shows all";

impl Algorithm {
    /// Every algorithm: transforms, then roundings.
    pub fn table() -> impl Iterator<Item = AlgorithmRow> {
        let transforms = Transform::ALL.iter().map(|row| AlgorithmRow {
            name: row.name,
            algorithm: Algorithm::Transform(row.transform),
            paper: row.paper,
            about: row.about,
        });
        transforms.chain(Rounding::ALL.iter().map(|row| AlgorithmRow {
            name: row.name,
            algorithm: Algorithm::Rounding(row.rounding),
            paper: row.paper,
            about: row.about,
        }))
    }

    /// The algorithm of that name with its usual settings.
    pub fn named(name: &str) -> Option<Algorithm> {
        let transform = Transform::named(name).map(Algorithm::Transform);
        transform.or_else(|| Rounding::named(name).map(Algorithm::Rounding))
    }

    /// Whether it is an algorithm that others have and that is not here.
    pub fn is_elsewhere(name: &str) -> bool {
        ELSEWHERE.contains(&name.to_ascii_lowercase().as_str())
    }

    /// The algorithm that `text` spells: a name, then options, `:NAME=VALUE` each.
    ///
    /// # Errors
    /// *Invalid* for what is no algorithm, no option of it or no value of the option; *unsupported* for algorithms that
    /// others have. Messages begin with `place`.
    pub fn find(place: &str, text: &str) -> Result<Algorithm, RecipeError> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        if name.is_empty() {
            let hint = "`kvant list algorithms` shows what there is; without any, leave the option out";
            return Err(RecipeError::invalid(place, "an algorithm without a name".to_owned(), hint));
        }
        let mut algorithm = Algorithm::named(&name.to_ascii_lowercase()).ok_or_else(|| unknown(place, name))?;
        let mut given: Vec<(&str, &str)> = parts.map(|part| part.split_once('=').unwrap_or((part, ""))).collect();
        // Some values are there with others only: options are set in the order of their table, however they stand.
        let place_of = |option: &str| ALGORITHM_OPTIONS.iter().position(|row| row.name == option);
        given.sort_by_key(|(option, _)| place_of(option));
        if let Some(pair) = given.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let reason = format!("`{name}` has the option {} twice", quoted(pair[0].0));
            return Err(RecipeError::invalid(place, reason, "give it once"));
        }
        given.into_iter().try_for_each(|(option, value)| algorithm.set(place, option, value))?;
        Ok(algorithm)
    }

    /// Gives an option its value.
    ///
    /// # Errors
    /// *Invalid* for what is no option of the algorithm, and no value of the option.
    pub fn set(&mut self, place: &str, option: &str, value: &str) -> Result<(), RecipeError> {
        let name = self.name();
        let Some((row, _)) = self.options().find(|(row, _)| row.name == option) else {
            let reason = format!("`{name}` has no option {}", quoted(option));
            return Err(RecipeError::invalid(place, reason, self.options_hint()));
        };
        if value.is_empty() {
            let reason = format!("`{name}:{}` has no value", row.name);
            return Err(RecipeError::invalid(place, reason, format!("give {}=VALUE, {}", row.name, row.values)));
        }
        row.set(self, value).ok_or_else(|| {
            let reason = format!("{} is no value of `{name}:{}`", quoted(value), row.name);
            RecipeError::invalid(place, reason, format!("give {}", row.values))
        })
    }

    /// Its options and their values.
    pub fn options(&self) -> impl Iterator<Item = (&'static AlgorithmOption, String)> + use<> {
        let algorithm = *self;
        ALGORITHM_OPTIONS.iter().filter_map(move |row| Some((row, row.get(&algorithm)?)))
    }

    fn options_hint(&self) -> String {
        let names: Vec<&str> = self.options().map(|(row, _)| row.name).collect();
        match names.is_empty() {
            true => "it has no options".to_owned(),
            false => format!("it has {}: write them as in {}:{}=...", names.join(", "), self.name(), names[0]),
        }
    }

    /// The spelling without options.
    pub fn name(&self) -> &'static str {
        match self {
            Algorithm::Transform(transform) => transform.name(),
            Algorithm::Rounding(rounding) => rounding.name(),
        }
    }

    /// What it must know of a layer's inputs, in words.
    pub fn needs(&self) -> &'static str {
        match self {
            Algorithm::Transform(transform) => match transform.needs() {
                transform::Needs::Maxima => "largest inputs",
                transform::Needs::MaximaAndRuns => "largest inputs, trial runs",
                transform::Needs::MeansRunsAndSamples => "mean inputs, trial runs",
            },
            Algorithm::Rounding(rounding) => match rounding.needs() {
                rounding::Needs::Nothing => "nothing",
                rounding::Needs::Hessian => "Hessians",
                rounding::Needs::Drift => "Hessians, float inputs",
            },
        }
    }

    /// What it costs besides a run of the calibration data through every block, in words.
    pub fn cost(&self) -> &'static str {
        match self {
            Algorithm::Transform(transform) => match transform.needs() {
                transform::Needs::Maxima => "little",
                transform::Needs::MaximaAndRuns | transform::Needs::MeansRunsAndSamples => {
                    "a run of half a block for each exponent"
                }
            },
            Algorithm::Rounding(rounding) => match rounding.needs() {
                rounding::Needs::Nothing => "nothing, not even that run",
                rounding::Needs::Hessian => "inputs^2 for each token and distinct input",
                rounding::Needs::Drift => "about three times that of gptq",
            },
        }
    }
}

impl fmt::Display for Algorithm {
    /// The name, and the options that have not their usual values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let usual = Algorithm::named(self.name());
        for (row, value) in self.options() {
            if usual.and_then(|usual| row.get(&usual)).as_ref() != Some(&value) {
                write!(f, ":{}={value}", row.name)?;
            }
        }
        Ok(())
    }
}

fn unknown(place: &str, name: &str) -> RecipeError {
    if Algorithm::is_elsewhere(name) {
        let reason = format!("the algorithm {} is not supported", quoted(name));
        return RecipeError::unsupported(place, reason, LIST);
    }
    if name.eq_ignore_ascii_case(IMATRIX) {
        let hint = "ask for a GGUF file: ‹format› gguf, or a scheme such as Q4_K_M";
        return RecipeError::invalid(
            place,
            format!("the algorithm {} is of GGUF files alone", quoted(name)),
            hint.to_owned(),
        );
    }
    let rated = Algorithm::table().map(|row| (strsim::damerau_levenshtein(&name.to_ascii_lowercase(), row.name), row));
    let hint = match rated.min_by_key(|(distance, _)| *distance) {
        Some((distance, row)) if distance <= 2 && name.len() < 64 => format!("did you mean `{}`? {LIST}", row.name),
        _ => LIST.to_owned(),
    };
    RecipeError::invalid(place, format!("unknown algorithm {}", quoted(name)), hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(text: &str) -> Result<Algorithm, RecipeError> {
        Algorithm::find("‹algorithm›", text)
    }

    #[test]
    fn every_row_is_found_and_spelled_by_its_name() {
        for row in Algorithm::table() {
            assert_eq!(find(row.name).unwrap(), row.algorithm);
            assert_eq!(row.algorithm.to_string(), row.name);
            assert!(!row.algorithm.needs().is_empty() && !row.algorithm.cost().is_empty());
            let all: String =
                row.algorithm.options().map(|(option, value)| format!(":{}={value}", option.name)).collect();
            assert_eq!(find(&format!("{}{all}", row.name)).unwrap(), row.algorithm, "{all}");
        }
        assert_eq!(find("GPTQ").unwrap(), find("gptq").unwrap());
    }

    #[test]
    fn mistakes_are_named() {
        let message = |text: &str| find(text).unwrap_err().to_string();
        assert_eq!(message("gptp"), "‹algorithm›: unknown algorithm `gptp`");
        assert!(find("gptp").unwrap_err().hint().starts_with("did you mean `gptq`?"));
        assert!(find("").unwrap_err().hint().starts_with("`kvant list"));
        assert_eq!(message("gptq:clip=on"), "‹algorithm›: `gptq` has no option `clip`");
        assert_eq!(
            find("gptq:clip=on").unwrap_err().hint(),
            "it has damping, order, groups, block: write them as in gptq:damping=..."
        );
        assert_eq!(find("rtn:order=stored").unwrap_err().hint(), "it has no options");
        assert_eq!(message("gptq:damping=2"), "‹algorithm›: `2` is no value of `gptq:damping`");
        assert_eq!(message("gptq:damping"), "‹algorithm›: `gptq:damping` has no value");
        assert_eq!(message(""), "‹algorithm›: an algorithm without a name");
        assert!(message("gptq:order=stored:order=stored").contains("twice"));
        assert_eq!(message("gptq:groups=dynamic"), "‹algorithm›: `dynamic` is no value of `gptq:groups`");
        assert!(message(&"z".repeat(100_000)).len() < 250);
    }

    #[test]
    fn algorithms_of_others_are_unsupported_and_not_invalid() {
        assert!(matches!(find("AutoRound").unwrap_err(), RecipeError::Unsupported(_)));
    }
}
