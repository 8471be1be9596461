//! From the text of a recipe file, TOML, JSON or YAML, to its keys.

use super::keys::Key;
use super::{OverrideEntry, RecipeFile, RecipeFileError, VERSION};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

impl RecipeFile {
    /// Reads TOML; `name` is the file's, for messages.
    ///
    /// # Errors
    /// *Invalid* for text that is no TOML, unknown keys and values of the wrong type; *unsupported* for a later version.
    pub fn from_toml(name: &str, text: &str) -> Result<RecipeFile, RecipeFileError> {
        let value: Value = toml::from_str(text).map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| 1 + text.bytes().take(span.start).filter(|b| *b == b'\n').count());
            let reason = error.message().lines().collect::<Vec<_>>().join(", ");
            RecipeFileError::invalid(
                format!("{name}, line {line}"),
                reason,
                "a recipe is TOML: `key = value` in each line",
            )
        })?;
        Document { name, text, syntax: Syntax::Toml }.read(value)
    }

    /// Reads a JSON object with the same keys.
    ///
    /// # Errors
    /// As [`RecipeFile::from_toml`].
    pub fn from_json(name: &str, value: Value) -> Result<RecipeFile, RecipeFileError> {
        Document { name, text: "", syntax: Syntax::Json }.read(value)
    }

    /// Reads a YAML mapping with the same keys.
    ///
    /// # Errors
    /// As [`RecipeFile::from_toml`].
    pub fn from_yaml(name: &str, value: Value) -> Result<RecipeFile, RecipeFileError> {
        Document { name, text: "", syntax: Syntax::Yaml }.read(value)
    }
}

/// The language of a file, in which messages spell what is to be written.
#[derive(Clone, Copy)]
enum Syntax {
    Toml,
    Json,
    Yaml,
}

impl Syntax {
    /// A key and a value that is written as in JSON.
    fn pair(self, key: &str, value: &str) -> String {
        match self {
            Syntax::Toml => format!("{key} = {value}"),
            Syntax::Json => format!("\"{key}\": {value}"),
            Syntax::Yaml => format!("{key}: {value}"),
        }
    }

    fn version(self) -> String {
        self.pair("version", &VERSION.to_string())
    }
}

/// The file being read.
struct Document<'a> {
    name: &'a str,
    /// The text of a TOML file, to find lines in.
    text: &'a str,
    syntax: Syntax,
}

impl Document<'_> {
    fn read(&self, value: Value) -> Result<RecipeFile, RecipeFileError> {
        let Value::Object(fields) = value else {
            return Err(RecipeFileError::invalid(
                self.name,
                "is not a table of keys",
                format!("write keys with values, such as `{}`", self.syntax.version()),
            ));
        };
        let mut named = Map::new();
        // The version comes first: keys of a later one are unknown.
        let (version, is_given) = self.version(&fields)?;
        for (key, value) in fields {
            let known = Key::find(&key).ok_or_else(|| self.unknown(&key))?;
            if named.insert(known.name.to_owned(), value).is_some() {
                let reason = format!("`{}` is given twice, once by another spelling", known.name);
                return Err(RecipeFileError::invalid(self.place(&key), reason, "keep one of them"));
            }
        }
        let overrides = self.overrides(named.remove("override"))?;
        let biases = named.get_mut("layer_types").map(layer_type_biases).unwrap_or_default();
        named.insert("version".to_owned(), version.into());
        let mut file = self.fields(named)?;
        file.overrides = overrides;
        file.layer_type_biases = biases;
        file.name = self.name.to_owned();
        file.notes.extend((version < VERSION).then(|| self.upgrade(&file, is_given)));
        Ok(file)
    }

    fn version(&self, fields: &Map<String, Value>) -> Result<(u32, bool), RecipeFileError> {
        let Some(value) = fields.get("version") else { return Ok((1, false)) };
        match value.as_u64() {
            Some(version @ 1..=2) => Ok((version as u32, true)),
            Some(version) => {
                let reason = format!("the recipe has version {version}, and this Kvant reads versions up to {VERSION}");
                Err(RecipeFileError::unsupported(self.name, reason, "use the Kvant that the recipe was written for"))
            }
            None => {
                let hint = format!("write `{}`", self.syntax.version());
                Err(RecipeFileError::invalid(self.place("version"), "the version is not a whole number", hint))
            }
        }
    }

    fn unknown(&self, key: &str) -> RecipeFileError {
        let shown: String = key.chars().take(64).flat_map(char::escape_debug).collect();
        let hint = match Key::nearest(key) {
            Some(name) => format!("did you mean `{name}`? docs/reference/recipes.md lists all keys"),
            None => "docs/reference/recipes.md lists all keys".to_owned(),
        };
        RecipeFileError::invalid(self.place(key), format!("unknown key `{shown}`"), hint)
    }

    fn overrides(&self, value: Option<Value>) -> Result<Vec<OverrideEntry>, RecipeFileError> {
        let entries = match value {
            None => return Ok(Vec::new()),
            Some(Value::Array(entries)) => entries,
            Some(_) => {
                let hint = match self.syntax {
                    Syntax::Toml => "begin each with [[override]]",
                    Syntax::Json | Syntax::Yaml => "write a list, with a table for each override",
                };
                return Err(RecipeFileError::invalid(
                    self.place("override"),
                    "`override` is not a list of tables",
                    hint,
                ));
            }
        };
        let mut lines = self.lines_of(|line| line.starts_with("[[override]]"));
        let read = |(at, entry): (usize, &Value)| {
            let place = match lines.next() {
                Some(line) => format!("{}, line {line}, override {}", self.name, at + 1),
                None => format!("{}, override {}", self.name, at + 1),
            };
            OverrideEntry::read(&place, entry)
        };
        entries.iter().enumerate().map(read).collect()
    }

    /// The fields; where they are not as they should be, the first that is not.
    fn fields(&self, named: Map<String, Value>) -> Result<RecipeFile, RecipeFileError> {
        let read = |fields: Map<String, Value>| serde_json::from_value::<RecipeFile>(Value::Object(fields));
        let wrong = named.iter().find_map(|(key, value)| {
            let error = read(Map::from_iter([(key.clone(), value.clone())])).err()?;
            Some((key.clone(), error))
        });
        match wrong {
            None => read(named).map_err(|error| {
                RecipeFileError::invalid(self.name, error.to_string(), "docs/reference/recipes.md lists all keys")
            }),
            Some((key, error)) => {
                let reason = format!("`{key}`: {error}");
                Err(RecipeFileError::invalid(self.place(&key), reason, "docs/reference/recipes.md describes all keys"))
            }
        }
    }

    /// The upgrade of a file from version 1 to version 2.
    fn upgrade(&self, file: &RecipeFile, is_given: bool) -> String {
        let is = if is_given { "has version 1" } else { "has no version and is read as version 1" };
        let version = self.syntax.version();
        let how = if file.exclude.is_empty() || file.overrides.is_empty() {
            format!("write `{version}`, which means the same for this file")
        } else {
            let (place, keep) = match self.syntax {
                Syntax::Toml => ("an [[override]]", "scheme = \"keep\"".to_owned()),
                syntax => ("an entry of `override`", format!("`{}`", syntax.pair("scheme", "\"keep\""))),
            };
            format!(
                "write `{version}`, in which the last match wins: to let an exclusion win over {place}, write it as a later one \
                 with {keep}"
            )
        };
        format!("{} {is}; to upgrade, {how}", file.name)
    }

    /// The file, and the line that a key is in.
    fn place(&self, key: &str) -> String {
        let has_key = |line: &str| line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='));
        match self.lines_of(has_key).next() {
            Some(line) => format!("{}, line {line}", self.name),
            None => self.name.to_owned(),
        }
    }

    fn lines_of(&self, matches: impl Fn(&str) -> bool) -> impl Iterator<Item = usize> {
        let lines = self.text.lines().enumerate();
        lines.filter(move |(_, line)| matches(line.trim_start())).map(|(at, _)| at + 1)
    }
}

/// Takes the schemes of biases out of a table of kinds of layers. A kind with nothing else is no longer in it.
fn layer_type_biases(kinds: &mut Value) -> BTreeMap<String, String> {
    let mut biases = BTreeMap::new();
    let Value::Object(kinds) = kinds else { return biases };
    kinds.retain(|kind, value| {
        let Value::Object(table) = value else { return true };
        // What is no text is refused with the table.
        let bias = table.get("bias").and_then(Value::as_str).map(str::to_owned);
        let Some(bias) = bias else { return true };
        table.remove("bias");
        biases.insert(kind.clone(), bias);
        !table.is_empty()
    });
    biases
}

/// Kinds of layers, each with a scheme or a table that has one.
pub(super) fn layer_types<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    const EXPECTED: &str = "a scheme or a table with `scheme` or `bias` is needed for each kind of layer";
    let kinds = match Value::deserialize(deserializer)? {
        Value::Null => Map::new(),
        Value::Object(kinds) => kinds,
        _ => return Err(D::Error::custom("a table of kinds of layers is needed")),
    };
    let scheme = |value: Value| match value {
        Value::String(scheme) => Some(scheme),
        Value::Object(table) if table.len() == 1 => table.get("scheme")?.as_str().map(str::to_owned),
        _ => None,
    };
    let read = |(kind, value)| Some((kind, scheme(value)?));
    kinds.into_iter().map(|entry| read(entry).ok_or_else(|| D::Error::custom(EXPECTED))).collect()
}

/// One algorithm or a list of them, each a text or a table with its name and options, as spellings.
pub(super) fn algorithms<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(Vec::new()),
        Value::Array(entries) => entries.iter().map(|entry| algorithm(entry).map_err(D::Error::custom)).collect(),
        one => algorithm(&one).map(|spelling| vec![spelling]).map_err(D::Error::custom),
    }
}

/// `{ name = "gptq", damping = 0.05 }` is spelled `gptq:damping=0.05`.
fn algorithm(entry: &Value) -> Result<String, &'static str> {
    const EXPECTED: &str = "a text, a table with `name` and options, or a list of these is needed";
    let table = match entry {
        Value::String(text) => return Ok(text.clone()),
        Value::Object(table) => table,
        _ => return Err(EXPECTED),
    };
    let mut spelling = table.get("name").and_then(Value::as_str).ok_or(EXPECTED)?.to_owned();
    for (option, value) in table.iter().filter(|(option, _)| *option != "name") {
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Bool(true) => "on".to_owned(),
            Value::Bool(false) => "off".to_owned(),
            Value::Number(number) => number.to_string(),
            _ => return Err("an option of an algorithm is a text, a number, true or false"),
        };
        spelling.push_str(&format!(":{}={value}", option.replace('_', "-")));
    }
    Ok(spelling)
}
