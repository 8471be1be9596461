//! One algorithm as it is spelled: `cle:steps=3`. Not lists of them.

use std::fmt;
use std::str::FromStr;

use kvant_container::{Diagnostic, ErrorKind};
use kvant_quant::options::{self, OptionError};

use super::{Algorithm, algorithms, named};

/// Errors of an algorithm text or an invalid combination. Always *invalid*.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpellingError {
    /// No algorithm has the name.
    #[error("`{name}` is not an algorithm for ONNX graphs{suggestion}")]
    Unknown {
        /// The name.
        name: String,
        /// The nearest name there is, as a question, or nothing.
        suggestion: String,
    },
    /// Its options are not understood.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// An algorithm stands twice.
    #[error("`{0}` is given twice")]
    Twice(String),
    /// Two algorithms choose codes.
    #[error("`{0}` and `{1}` both choose codes, which can be done once")]
    TwoRoundings(String, String),
}

impl Diagnostic for SpellingError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Unknown { .. } => "`kvant list algorithms` shows all".to_owned(),
            Self::Option(problem) => problem.hint(),
            Self::Twice(_) => "give it once, with all of its options".to_owned(),
            Self::TwoRoundings(..) => "keep one of them".to_owned(),
        };
        Some(hint)
    }
}

impl FromStr for Algorithm {
    type Err = SpellingError;

    /// Reads a name and its options, `:NAME=VALUE` each.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, given) = options::split(text);
        Ok(named(name).ok_or_else(|| unknown(name))?.read(&given)?)
    }
}

fn unknown(name: &str) -> SpellingError {
    let (rows, lowered) = (algorithms(), name.to_ascii_lowercase());
    let rated = rows.iter().map(|row| (strsim::damerau_levenshtein(&lowered, &row.name), row));
    let near = rated.min_by_key(|(distance, _)| *distance).filter(|(distance, _)| *distance <= 2 && name.len() < 64);
    let suggestion = near.map_or_else(String::new, |(_, row)| format!("; did you mean `{}`?", row.name));
    SpellingError::Unknown { name: name.to_owned(), suggestion }
}

impl fmt::Display for Algorithm {
    /// The name, and the settings that are not the default ones.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let defaults = named(self.name()).map(|row| row.default.settings()).unwrap_or_default();
        for (name, value) in self.settings().iter().filter(|setting| !defaults.contains(setting)) {
            write!(f, ":{name}={value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_options_are_omitted() {
        let same = |text: &str| text.parse::<Algorithm>().unwrap().to_string();
        assert_eq!(same("CLE"), "cle");
        assert_eq!(same("bias_correction"), "bias-correction");
        assert_eq!(same("cle:bias=off:steps=3"), "cle:steps=3:bias=off");
        assert_eq!(same("gptq:order=on"), "gptq");
        assert_eq!(same("gptq:order=off"), "gptq:order=stored");
    }

    #[test]
    fn clip_is_searched_unless_switched_off() {
        let same = |text: &str| text.parse::<Algorithm>().map(|algorithm| algorithm.to_string());
        assert_eq!(same("awq:clip=on").unwrap(), "awq");
        assert_eq!(same("awq:clip=off:duo=on").unwrap(), "awq:duo=on:clip=off");
        assert_eq!(same("awq:tokens=64").unwrap(), "awq:tokens=64");
        assert!(same("awq:clip=off:tokens=64").is_err());
    }

    #[test]
    fn only_graphs_have_the_names_that_are_reserved_for_them() {
        for name in kvant_quant::algorithm::NAMES_OF_GRAPHS {
            assert!(named(name).is_some() && kvant_quant::algorithm::named(name).is_none(), "{name}");
        }
        let reserved = |name: &&str| !kvant_quant::algorithm::NAMES_OF_GRAPHS.contains(name);
        for row in algorithms().into_iter().filter(|row| kvant_quant::algorithm::named(&row.name).is_none()) {
            assert_eq!(row.names().find(reserved), None, "a registered algorithm could have its name");
        }
    }

    #[test]
    fn spelling_mistakes_are_named_with_a_hint() {
        let error = |text: &str| text.parse::<Algorithm>().unwrap_err();
        assert_eq!(error("clee").to_string(), "`clee` is not an algorithm for ONNX graphs; did you mean `cle`?");
        assert!(error("cle:x=1").hint().unwrap().starts_with("it has steps"));
        assert_eq!(error("cle:steps=no").to_string(), "`no` is not a value of `cle:steps`");
        assert_eq!(error("cle:steps=1:steps=2").to_string(), "`cle` has the option `steps` twice");
    }
}
