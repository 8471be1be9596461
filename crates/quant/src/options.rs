//! Settings of algorithms as text: `gptq:damping=0.05:order=stored`. One grammar for the algorithms of all model kinds. Not
//! the meaning of settings, and not the list of algorithms.
//!
//! The settings of an algorithm are a struct with `serde`, and with a table of [`OptionRow`]s, which lists what a user may
//! write. Recipes that hold tables in place of text read the same struct.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Names of options and their values, as they are spelled.
pub type Settings = Vec<(String, String)>;

/// An option of an algorithm: a field of its settings.
#[derive(Clone, Copy, Debug)]
pub struct OptionRow {
    /// The name of the field.
    pub name: &'static str,
    /// The texts that it takes.
    pub values: Values,
    /// One line that explains it.
    pub about: &'static str,
}

/// The texts that an option takes.
#[derive(Clone, Copy, Debug)]
pub struct Values {
    /// In words: "a number from 0 to 1".
    pub text: &'static str,
    /// Whether it takes a text.
    pub accepts: fn(&str) -> bool,
}

impl Values {
    /// Numbers from 0 to 1.
    pub const SHARE: Values = Values { text: "a number from 0 to 1", accepts: |text| is_number(text, 0.0, 1.0) };
    /// Counts of at least one.
    pub const COUNT: Values = Values {
        text: "a whole number from 1 to 1000000",
        accepts: |text| text.parse().is_ok_and(|count: u32| (1..=1_000_000).contains(&count)),
    };
    /// Counts that may be zero.
    pub const ROUNDS: Values = Values {
        text: "a whole number from 0 to 1000",
        accepts: |text| text.parse().is_ok_and(|count: u32| count <= 1000),
    };
    /// `on` or `off`: a field of type `bool`.
    pub const SWITCH: Values = Values { text: "on or off", accepts: |text| matches!(text, "on" | "off") };
    /// Seeds of random numbers.
    pub const SEED: Values = Values {
        text: "a whole number from 0 to 4294967295",
        accepts: |text| text.parse::<u32>().is_ok() && !text.starts_with('+'),
    };
    /// Learning rates and other factors.
    pub const RATE: Values = Values { text: "a number from 0 to 10", accepts: |text| is_number(text, 0.0, 10.0) };
}

/// Returns whether a text is a number within bounds.
pub fn is_number(text: &str, least: f64, most: f64) -> bool {
    text.parse().is_ok_and(|number: f64| number >= least && number <= most)
}

/// Errors of a settings text; always *invalid*.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum OptionError {
    /// The algorithm has no such option.
    #[error("`{algorithm}` has no option {}", quoted(option))]
    NoOption {
        /// The algorithm.
        algorithm: String,
        /// The text.
        option: String,
        /// The options that there are.
        known: Vec<&'static str>,
    },
    /// The option is given twice.
    #[error("`{algorithm}` has the option {} twice", quoted(option))]
    Twice {
        /// The algorithm.
        algorithm: String,
        /// The option.
        option: String,
    },
    /// The option has no value.
    #[error("`{algorithm}:{option}` has no value")]
    NoValue {
        /// The algorithm.
        algorithm: String,
        /// The option.
        option: &'static str,
        /// The values that there are, in words.
        values: &'static str,
    },
    /// The option does not take the value.
    #[error("{} is not a value of `{algorithm}:{option}`", quoted(value))]
    WrongValue {
        /// The algorithm.
        algorithm: String,
        /// The option.
        option: &'static str,
        /// The text.
        value: String,
        /// The values that there are, in words.
        values: &'static str,
    },
    /// The options are valid one by one and do nothing together.
    #[error("`{algorithm}` {reason}")]
    Idle {
        /// The algorithm.
        algorithm: &'static str,
        /// What is wrong, after the name.
        reason: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
}

impl OptionError {
    /// Returns whether it is about an option.
    pub fn is_of(&self, name: &str) -> bool {
        match self {
            OptionError::NoOption { option, .. } | OptionError::Twice { option, .. } => option == name,
            OptionError::NoValue { option, .. } | OptionError::WrongValue { option, .. } => *option == name,
            OptionError::Idle { .. } => false,
        }
    }

    /// The remedy.
    pub fn hint(&self) -> String {
        match self {
            OptionError::NoOption { algorithm, known, .. } => match known.first() {
                None => "it has no options".to_owned(),
                Some(first) => format!("it has {}: write them as in {algorithm}:{first}=...", known.join(", ")),
            },
            OptionError::Twice { .. } => "give it once".to_owned(),
            OptionError::NoValue { option, values, .. } => format!("give {option}=VALUE, {values}"),
            OptionError::WrongValue { values, .. } => format!("give {values}"),
            OptionError::Idle { remedy, .. } => (*remedy).to_owned(),
        }
    }
}

/// A text in quotes, cut where it is long.
fn quoted(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("`{}...`", &text[..end]),
        None => format!("`{text}`"),
    }
}

/// An algorithm as text: its name, and the options with their values, which are empty where there is no `=`.
pub fn split(text: &str) -> (&str, Vec<(&str, &str)>) {
    let mut parts = text.trim().split(':');
    let name = parts.next().unwrap_or_default();
    (name, parts.map(|part| part.split_once('=').unwrap_or((part, ""))).collect())
}

/// The fields of settings as options are spelled, in their order; those that are `None` are left out.
pub fn shown<S: Serialize>(settings: &S) -> Settings {
    let text = |value: Value| match value {
        Value::Bool(on) => Some(if on { "on" } else { "off" }.to_owned()),
        Value::String(text) => Some(text),
        Value::Number(number) => Some(match number.as_u64() {
            Some(whole) => whole.to_string(),
            None => number.as_f64().map_or_else(|| number.to_string(), |float| float.to_string()),
        }),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    };
    fields(settings).into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect()
}

/// The settings that texts give; fields that are not given are those of `defaults`.
///
/// # Errors
/// Where an option does not exist, is given twice, or does not take its value. `algorithm` is the name in messages.
pub fn read<S: Serialize + DeserializeOwned>(
    algorithm: &str,
    options: &[OptionRow],
    defaults: &S,
    given: &[(&str, &str)],
) -> Result<S, OptionError> {
    let mut fields = fields(defaults);
    for (index, (name, text)) in given.iter().enumerate() {
        let algorithm = || algorithm.to_owned();
        let row = options.iter().find(|row| row.name == *name).ok_or_else(|| OptionError::NoOption {
            algorithm: algorithm(),
            option: (*name).to_owned(),
            known: options.iter().map(|row| row.name).collect(),
        })?;
        if given[..index].iter().any(|(earlier, _)| earlier == name) {
            return Err(OptionError::Twice { algorithm: algorithm(), option: (*name).to_owned() });
        }
        if text.is_empty() {
            return Err(OptionError::NoValue { algorithm: algorithm(), option: row.name, values: row.values.text });
        }
        if !(row.values.accepts)(text) {
            return Err(wrong(&algorithm(), row, text));
        }
        let value = value(fields.get(*name), text);
        fields.insert((*name).to_owned(), value);
    }
    serde_json::from_value(Value::Object(fields)).map_err(|_| match given.last() {
        Some((name, text)) => OptionError::WrongValue {
            algorithm: algorithm.to_owned(),
            option: options.iter().find(|row| row.name == *name).map_or("", |row| row.name),
            value: (*text).to_owned(),
            values: "",
        },
        None => OptionError::NoOption { algorithm: algorithm.to_owned(), option: String::new(), known: Vec::new() },
    })
}

/// The value of an option that does not go with the others.
pub fn refused(algorithm: &str, options: &[OptionRow], option: &str, given: &[(&str, &str)]) -> OptionError {
    let text = given.iter().find(|(name, _)| *name == option).map_or("", |(_, text)| text);
    match options.iter().find(|row| row.name == option) {
        Some(row) => wrong(algorithm, row, text),
        None => OptionError::NoOption { algorithm: algorithm.to_owned(), option: option.to_owned(), known: Vec::new() },
    }
}

fn wrong(algorithm: &str, row: &OptionRow, text: &str) -> OptionError {
    let (algorithm, value) = (algorithm.to_owned(), text.to_owned());
    OptionError::WrongValue { algorithm, option: row.name, value, values: row.values.text }
}

/// The fields of a struct. Through text, where numbers in f32 have no more digits than they need.
fn fields<S: Serialize>(settings: &S) -> Map<String, Value> {
    let text = serde_json::to_string(settings).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// A text as a value of the type of the one before it.
fn value(before: Option<&Value>, text: &str) -> Value {
    match before {
        Some(Value::Bool(_)) => Value::Bool(text == "on"),
        Some(Value::String(_)) => Value::String(text.to_owned()),
        _ => match (text.parse::<u64>(), text.parse::<f64>()) {
            (Ok(whole), _) => Value::from(whole),
            (_, Ok(number)) => Value::from(number),
            _ => Value::String(text.to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Example {
        rate: f32,
        steps: u32,
        eager: bool,
        way: Way,
        limit: Option<u32>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Way {
        Up,
        Down,
    }

    const OPTIONS: &[OptionRow] = &[
        OptionRow { name: "rate", values: Values::RATE, about: "" },
        OptionRow { name: "steps", values: Values::COUNT, about: "" },
        OptionRow { name: "eager", values: Values::SWITCH, about: "" },
        OptionRow {
            name: "way",
            values: Values { text: "up or down", accepts: |t| matches!(t, "up" | "down") },
            about: "",
        },
        OptionRow { name: "limit", values: Values::COUNT, about: "" },
    ];

    const DEFAULTS: Example = Example { rate: 0.1, steps: 20, eager: false, way: Way::Up, limit: None };

    fn of(text: &str) -> Result<Example, OptionError> {
        read("example", OPTIONS, &DEFAULTS, &split(text).1)
    }

    #[test]
    fn option_values_round_trip() {
        let all = of("example:rate=1e-5:steps=7:eager=on:way=down:limit=3").unwrap();
        assert_eq!(all, Example { rate: 1e-5, steps: 7, eager: true, way: Way::Down, limit: Some(3) });
        let text: Vec<String> = shown(&all).into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(text.join(":"), "rate=0.00001:steps=7:eager=on:way=down:limit=3");
        assert_eq!(shown(&DEFAULTS)[0], ("rate".to_owned(), "0.1".to_owned()));
        assert_eq!(shown(&DEFAULTS).len(), 4);
        assert_eq!(of("example").unwrap(), DEFAULTS);
    }

    #[test]
    fn option_mistakes_are_named_with_a_hint() {
        let message = |text: &str| of(text).unwrap_err().to_string();
        assert_eq!(message("example:size=3"), "`example` has no option `size`");
        assert_eq!(
            of("example:size=3").unwrap_err().hint(),
            "it has rate, steps, eager, way, limit: write them as in example:rate=..."
        );
        assert_eq!(message("example:steps=0"), "`0` is not a value of `example:steps`");
        assert_eq!(message("example:eager"), "`example:eager` has no value");
        assert_eq!(message("example:way=up:way=up"), "`example` has the option `way` twice");
        for nonsense in ["x", "nan", "inf", "-1", "1e99", "ON"] {
            for row in OPTIONS {
                assert!(of(&format!("example:{}={nonsense}", row.name)).is_err(), "{} {nonsense}", row.name);
            }
        }
        assert!(message(&format!("example:{}=1", "z".repeat(100_000))).len() < 250);
    }
}
