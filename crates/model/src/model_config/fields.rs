//! Typed access to the keys of a JSON object that a stranger wrote: an absent key and null are `None`, a value of the
//! wrong type or out of range is an error that names the key. Names no key itself.

use serde_json::{Map, Value};

use super::ConfigError;
use super::unread::is_unread;

/// The largest size that any field may state. Real sizes are far below; products of two fit `u64`.
const MAX_COUNT: u64 = i32::MAX as u64;

/// A JSON object and the path that leads to it from the root, for messages.
pub(super) struct Section<'a> {
    pub(super) path: String,
    pub(super) map: &'a Map<String, Value>,
}

/// Sections to look into, the first that has the key wins.
#[derive(Clone, Copy)]
pub(super) struct Fields<'s, 'a> {
    sections: &'s [Section<'a>],
    model_type: Option<&'s str>,
}

impl<'s, 'a> Fields<'s, 'a> {
    pub(super) fn new(sections: &'s [Section<'a>]) -> Self {
        Fields { sections, model_type: None }
    }

    /// The same without keys that the class of `model_type` does not read.
    pub(super) fn read_by(self, model_type: Option<&'s str>) -> Self {
        Fields { model_type, ..self }
    }

    /// Returns whether the class that reads the keys is that of this `model_type`.
    pub(super) fn is_of(&self, model_type: &str) -> bool {
        self.model_type == Some(model_type)
    }

    /// The first of `keys` that is read and has a value other than null, with its full path.
    pub(super) fn find(&self, keys: &[&str]) -> Option<(String, &'a Value)> {
        self.sections.iter().find_map(|section| {
            let read = keys.iter().filter(|key| !is_unread(self.model_type, key));
            let mut present = read.filter_map(|key| Some((key, section.map.get(*key)?)));
            let (key, value) = present.find(|(_, value)| !value.is_null())?;
            Some((join(&section.path, key), value))
        })
    }

    /// Returns whether the first section with this key has null there.
    pub(super) fn states_null(&self, key: &str) -> bool {
        self.sections.iter().find_map(|section| section.map.get(key)).is_some_and(Value::is_null)
    }

    /// A size: a whole number from 1 on. A list means one size per layer, hence no single one: `None`.
    pub(super) fn size(&self, keys: &[&str]) -> Result<Option<usize>, ConfigError> {
        match self.find(keys) {
            None | Some((_, Value::Array(_))) => Ok(None),
            Some((key, value)) => count(&key, value, 1).map(Some),
        }
    }

    /// A number of things, which may be 0. A list is `None`, as for [`Fields::size`].
    pub(super) fn count(&self, keys: &[&str]) -> Result<Option<usize>, ConfigError> {
        match self.find(keys) {
            None | Some((_, Value::Array(_))) => Ok(None),
            Some((key, value)) => count(&key, value, 0).map(Some),
        }
    }

    /// Sizes: a whole number, or a list with one per layer.
    pub(super) fn sizes(&self, keys: &[&str]) -> Result<Vec<usize>, ConfigError> {
        match self.find(keys) {
            None => Ok(Vec::new()),
            Some((key, Value::Array(list))) => list.iter().map(|value| count(&key, value, 1)).collect(),
            Some((key, value)) => Ok(vec![count(&key, value, 1)?]),
        }
    }

    /// A finite number.
    pub(super) fn number(&self, keys: &[&str]) -> Result<Option<f64>, ConfigError> {
        self.find(keys).map(|(key, value)| number(&key, value)).transpose()
    }

    /// A finite number above 0.
    pub(super) fn positive(&self, keys: &[&str]) -> Result<Option<f64>, ConfigError> {
        let Some((key, value)) = self.find(keys) else { return Ok(None) };
        let x = number(&key, value)?;
        match x > 0.0 {
            true => Ok(Some(x)),
            false => Err(ConfigError::invalid(key, "a number above 0", value)),
        }
    }

    /// A list of finite numbers.
    pub(super) fn numbers(&self, keys: &[&str]) -> Result<Vec<f64>, ConfigError> {
        match self.find(keys) {
            None => Ok(Vec::new()),
            Some((key, Value::Array(list))) => list.iter().map(|value| number(&key, value)).collect(),
            Some((key, value)) => Err(ConfigError::invalid(key, "a list of numbers", value)),
        }
    }

    /// A boolean.
    pub(super) fn flag(&self, keys: &[&str]) -> Result<Option<bool>, ConfigError> {
        let found = self.find(keys);
        let flag = found.map(|(key, value)| value.as_bool().ok_or(ConfigError::invalid(key, "true or false", value)));
        flag.transpose()
    }

    /// A string.
    pub(super) fn text(&self, keys: &[&str]) -> Result<Option<String>, ConfigError> {
        self.find(keys).map(|(key, value)| text(&key, value)).transpose()
    }

    /// A list of strings.
    pub(super) fn texts(&self, keys: &[&str]) -> Result<Vec<String>, ConfigError> {
        match self.find(keys) {
            None => Ok(Vec::new()),
            Some((key, Value::Array(list))) => list.iter().map(|value| text(&key, value)).collect(),
            Some((key, value)) => Err(ConfigError::invalid(key, "a list of strings", value)),
        }
    }

    /// An object.
    pub(super) fn object(&self, keys: &[&str]) -> Result<Option<Section<'a>>, ConfigError> {
        match self.find(keys) {
            None => Ok(None),
            Some((path, Value::Object(map))) => Ok(Some(Section { path, map })),
            Some((key, value)) => Err(ConfigError::invalid(key, "an object", value)),
        }
    }
}

/// `path.key`, or `key` at the root.
pub(super) fn join(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        _ => format!("{path}.{key}"),
    }
}

fn count(key: &str, value: &Value, least: u64) -> Result<usize, ConfigError> {
    let whole = value.as_u64().or_else(|| whole_float(value));
    match whole.filter(|n| (least..=MAX_COUNT).contains(n)) {
        Some(n) => Ok(n as usize),
        None => {
            let expected = format!("a whole number from {least} to {MAX_COUNT}");
            Err(ConfigError::invalid(key, &expected, value))
        }
    }
}

/// Some tools write `4096.0`.
fn whole_float(value: &Value) -> Option<u64> {
    let x = value.as_f64()?;
    let is_whole = x.fract() == 0.0 && (0.0..=MAX_COUNT as f64).contains(&x);
    is_whole.then_some(x as u64)
}

fn number(key: &str, value: &Value) -> Result<f64, ConfigError> {
    let finite = value.as_f64().filter(|x| x.is_finite());
    finite.ok_or_else(|| ConfigError::invalid(key, "a finite number", value))
}

fn text(key: &str, value: &Value) -> Result<String, ConfigError> {
    let text = value.as_str().map(str::to_owned);
    text.ok_or_else(|| ConfigError::invalid(key, "a string", value))
}
