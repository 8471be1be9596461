//! One algorithm as it is spelled: `cle:steps=3`. Not lists of them.

use std::fmt;
use std::str::FromStr;

use kvant_container::ErrorKind;

use super::option::AlgorithmOption;
use super::{ALGORITHMS, Algorithm};

/// Why a text is no algorithm, or algorithms do not go together. Always *invalid*.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpellingError {
    /// No algorithm has the name.
    #[error("`{name}` is no algorithm of ONNX graphs{suggestion}")]
    Unknown {
        /// The name.
        name: String,
        /// The nearest name there is, as a question, or nothing.
        suggestion: String,
    },
    /// The algorithm has no such option.
    #[error("`{algorithm}` has no option `{option}`")]
    NoOption {
        /// The algorithm.
        algorithm: &'static str,
        /// What is no option.
        option: String,
    },
    /// The option has no such value.
    #[error("`{value}` is no value of `{algorithm}:{option}`")]
    NoValue {
        /// The algorithm.
        algorithm: &'static str,
        /// The option.
        option: &'static str,
        /// What is no value.
        value: String,
        /// What the option may be.
        values: &'static str,
    },
    /// An algorithm, or an option of one, stands twice.
    #[error("`{0}` is given twice")]
    Twice(String),
    /// Two algorithms choose codes.
    #[error("`{0}` and `{1}` both choose codes, which can be done once")]
    TwoRoundings(&'static str, &'static str),
}

impl SpellingError {
    /// Whose fault it is.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Invalid
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { .. } => "`kvant list algorithms` shows all".to_owned(),
            Self::NoOption { algorithm, .. } => {
                let row = ALGORITHMS.iter().find(|row| row.name == *algorithm);
                let names: Vec<&str> = row.iter().flat_map(|row| row.options).map(|option| option.name).collect();
                let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                format!("it has {has}")
            }
            Self::NoValue { values, .. } => format!("give {values}"),
            Self::Twice(_) => "give it once, with all of its options".to_owned(),
            Self::TwoRoundings(..) => "keep one of them".to_owned(),
        }
    }
}

impl FromStr for Algorithm {
    type Err = SpellingError;

    /// Reads a name and its options, `:NAME=VALUE` each.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.trim().split(':');
        let name = parts.next().unwrap_or_default();
        let mut algorithm = Algorithm::named(name).ok_or_else(|| unknown(name))?;
        let mut seen: Vec<&str> = Vec::new();
        for part in parts {
            let (option, value) = part.split_once('=').unwrap_or((part, ""));
            if seen.contains(&option) {
                return Err(SpellingError::Twice(format!("{name}:{option}")));
            }
            seen.push(option);
            algorithm.set(option, value)?;
        }
        Ok(algorithm)
    }
}

impl Algorithm {
    fn set(&mut self, name: &str, value: &str) -> Result<(), SpellingError> {
        let row = self.row();
        let option = row.options.iter().find(|option| option.name == name);
        let missing = || SpellingError::NoOption { algorithm: row.name, option: name.to_owned() };
        let AlgorithmOption { name: option, values, set, .. } = *option.ok_or_else(missing)?;
        let wrong = || SpellingError::NoValue { algorithm: row.name, option, value: value.to_owned(), values };
        set(self, value).ok_or_else(wrong)
    }
}

fn unknown(name: &str) -> SpellingError {
    let rated = ALGORITHMS.iter().map(|row| (strsim::damerau_levenshtein(&name.to_ascii_lowercase(), row.name), row));
    let near = rated.min_by_key(|(distance, _)| *distance).filter(|(distance, _)| *distance <= 2 && name.len() < 64);
    let suggestion = near.map_or_else(String::new, |(_, row)| format!("; did you mean `{}`?", row.name));
    SpellingError::Unknown { name: name.to_owned(), suggestion }
}

impl fmt::Display for Algorithm {
    /// The name, and the options that have not their usual values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = self.row();
        f.write_str(row.name)?;
        for option in row.options {
            let value = (option.get)(self);
            if let Some(value) = value.filter(|value| (option.get)(&row.usual).as_ref() != Some(value)) {
                write!(f, ":{}={value}", option.name)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usual_goes_without_saying() {
        let same = |text: &str| text.parse::<Algorithm>().unwrap().to_string();
        assert_eq!(same("CLE"), "cle");
        assert_eq!(same("bias_correction"), "bias-correction");
        assert_eq!(same("cle:bias=off:steps=3"), "cle:steps=3:bias=off");
    }

    #[test]
    fn mistakes_are_named_with_a_way_out() {
        let error = |text: &str| text.parse::<Algorithm>().unwrap_err();
        assert_eq!(error("clee").to_string(), "`clee` is no algorithm of ONNX graphs; did you mean `cle`?");
        assert!(error("cle:x=1").hint().starts_with("it has steps"));
        assert_eq!(error("cle:steps=no").to_string(), "`no` is no value of `cle:steps`");
        assert_eq!(error("cle:steps=1:steps=2").to_string(), "`cle:steps` is given twice");
    }
}
