//! YAML as JSON values, as PyYAML's `safe_load` reads the recipes of llm-compressor and the
//! front matter of model cards. Files are hostile: depth, aliases and the size of
//! the result are bounded, and keys that are given twice are refused.

use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use serde_json::{Map, Number, Value};
use std::collections::HashMap;

/// The deepest nesting of lists and mappings.
const MAX_DEPTH: usize = 32;
/// The most values, those that aliases repeat included.
const MAX_VALUES: usize = 100_000;
/// More text than this is no recipe.
const MAX_BYTES: usize = 1 << 20;

/// Reads the only document of a text.
///
/// # Errors
/// What is wrong, with its line: `line 3: ...`.
pub fn read(text: &str) -> Result<Value, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("line 1: longer than {MAX_BYTES} bytes"));
    }
    let mut reader = YamlReader { open: Vec::new(), anchors: HashMap::new(), values: 0, document: None };
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| at(error.marker().line(), error.info()))?;
        reader.take(event, span)?;
    }
    reader.document.ok_or_else(|| "line 1: the file is empty".to_owned())
}

fn at(line: usize, problem: &str) -> String {
    format!("line {line}: {problem}")
}

/// A list or mapping whose end is still to come.
enum Open {
    List { anchor: usize, items: Vec<Value> },
    Mapping { anchor: usize, fields: Map<String, Value>, key: Option<String> },
}

struct YamlReader {
    open: Vec<Open>,
    anchors: HashMap<usize, Value>,
    values: usize,
    document: Option<Value>,
}

impl YamlReader {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), String> {
        let line = span.start.line();
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse(tag.is_some(), line)?;
                let value = if style == ScalarStyle::Plain { plain(&text) } else { Value::String(text.into_owned()) };
                self.put(value, anchor, line)
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse(tag.is_some(), line)?;
                self.begin(Open::List { anchor, items: Vec::new() }, line)
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse(tag.is_some(), line)?;
                self.begin(Open::Mapping { anchor, fields: Map::new(), key: None }, line)
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(Open::List { anchor, items }) => self.put(Value::Array(items), anchor, line),
                Some(Open::Mapping { anchor, fields, .. }) => self.put(Value::Object(fields), anchor, line),
                None => Err(at(line, "an end without a beginning")),
            },
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned();
                self.put(value.ok_or_else(|| at(line, "an alias of nothing"))?, 0, line)
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentStart(_) | Event::DocumentEnd => {
                Ok(())
            }
        }
    }

    fn refuse(&self, has_tag: bool, line: usize) -> Result<(), String> {
        if has_tag { Err(at(line, "tags are not read")) } else { Ok(()) }
    }

    fn begin(&mut self, open: Open, line: usize) -> Result<(), String> {
        if self.open.len() >= MAX_DEPTH {
            return Err(at(line, &format!("nested more than {MAX_DEPTH} levels deep")));
        }
        self.open.push(open);
        Ok(())
    }

    /// Puts a whole value where it belongs.
    fn put(&mut self, value: Value, anchor: usize, line: usize) -> Result<(), String> {
        // What a list holds was counted when it was put there, and counts again for each level: aliases multiply both.
        self.values = self.values.saturating_add(count(&value));
        if self.values > MAX_VALUES {
            return Err(at(line, &format!("more than {MAX_VALUES} values, those that aliases repeat included")));
        }
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
        match self.open.last_mut() {
            None if self.document.is_some() => return Err(at(line, "a second document")),
            None => self.document = Some(value),
            Some(Open::List { items, .. }) => items.push(value),
            Some(Open::Mapping { fields, key, .. }) => match (key.take(), value) {
                (Some(key), value) => {
                    if fields.contains_key(&key) {
                        let shown: String = key.chars().take(64).flat_map(char::escape_debug).collect();
                        return Err(at(line, &format!("`{shown}` is given twice")));
                    }
                    fields.insert(key, value);
                }
                (None, Value::Array(_) | Value::Object(_)) => return Err(at(line, "a key is a list or a mapping")),
                (None, Value::String(text)) => *key = Some(text),
                (None, scalar) => *key = Some(scalar.to_string()),
            },
        }
        Ok(())
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// A scalar without quotes, as YAML 1.1 resolves it.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => return Value::Bool(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => return Value::Bool(false),
        _ => {}
    }
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'))
        && text.chars().all(|c| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E'));
    let number = is_number.then(|| {
        let whole = text.parse::<i64>().ok().map(Number::from);
        whole.or_else(|| text.parse::<f64>().ok().and_then(Number::from_f64))
    });
    number.flatten().map_or_else(|| Value::String(text.to_owned()), Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn yaml_blocks_flows_and_scalars_are_read() {
        let text = "quant_stage:\n  quant_modifiers:\n    GPTQModifier:\n      ignore: [lm_head, 're:.*x']\n      \
                    weights: {num_bits: 4, symmetric: False, observer: null, rate: 1e-3, text: \"4\"}\n      \
                    mappings:\n      - - [a, b]\n        - c\n";
        let expected = json!({"quant_stage": {"quant_modifiers": {"GPTQModifier": {
            "ignore": ["lm_head", "re:.*x"],
            "weights": {"num_bits": 4, "symmetric": false, "observer": null, "rate": 0.001, "text": "4"},
            "mappings": [[["a", "b"], "c"]],
        }}}});
        assert_eq!(read(text), Ok(expected));
        assert_eq!(read("a: &x [1, 2]\nb: *x"), Ok(json!({"a": [1, 2], "b": [1, 2]})));
    }

    #[test]
    fn hostile_yaml_is_refused() {
        let bomb: String = (1..30).map(|i| format!("a{i}: &a{i} [*a{0}, *a{0}, *a{0}]\n", i - 1)).collect();
        assert!(read(&format!("a0: &a0 [x]\n{bomb}")).unwrap_err().contains("aliases"));
        assert!(read(&"[".repeat(10_000)).is_err());
        assert!(
            read(&(0..50).map(|i| format!("{}a:\n", " ".repeat(i))).collect::<String>()).unwrap_err().contains("deep")
        );
        assert_eq!(read("a: 1\nb: 2\na: 3"), Err("line 3: `a` is given twice".to_owned()));
        assert!(read("a: *b").is_err() && read("").is_err() && read("a: 1\n---\nb: 2").is_err());
        for tagged in ["a: !!python/object:os.system x", "a: !include x", "a: !x [b]", "a: !x {b: c}"] {
            assert!(read(tagged).unwrap_err().contains("tags"), "{tagged}");
        }
        assert!(read(&"x".repeat(MAX_BYTES + 1)).is_err());
    }
}
