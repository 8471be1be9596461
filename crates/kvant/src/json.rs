//! JSON objects as `--json` prints them: with the name of their schema (`docs/schemas`), and where they have a long list, whole and
//! still searchable line by line.

use crate::text::shown;
use kvant_container::supply::shown_name;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;

/// An object with the schema that it follows.
#[derive(Clone, Debug, Serialize)]
pub struct Versioned<T> {
    schema: String,
    #[serde(flatten)]
    object: T,
}

/// The object of a command.
pub fn versioned<T: Serialize>(command: &str, object: T) -> Versioned<T> {
    Versioned { schema: format!("{SCHEMA_PREFIX}{command}/{VERSION}"), object }
}

/// What the names of all schemas start with.
pub(crate) const SCHEMA_PREFIX: &str = "kvant.";

/// The version of all schemas: it changes when a key is renamed or removed, not when one is added.
const VERSION: u32 = 1;

/// A path as a string: one that is not UTF-8, or that stands for a model elsewhere, as messages spell it.
pub(crate) fn path(path: &Path) -> String {
    let text = path.to_str().filter(|_| shown_name(path).is_none());
    text.map_or_else(|| shown(path), str::to_owned)
}

/// The object of a command with one more field: an array whose elements have a line each.
pub fn object(command: &str, head: &Value, field: &str, elements: impl Iterator<Item = Value>) -> String {
    // Serializing values does not fail.
    let head = serde_json::to_string(&versioned(command, head)).unwrap_or_default();
    let open = head.strip_suffix('}').unwrap_or(&head);
    let lines: Vec<String> = elements.map(|element| element.to_string()).collect();
    format!("{open},{}:[\n{}\n]}}", Value::from(field), lines.join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_output_is_one_object_with_a_line_per_element() {
        let elements = || [json!({"name": "a\nb"}), json!(2)].into_iter();
        let text = object("plan", &json!({"head": {"nested": {}}}), "rows", elements());
        assert_eq!(text.lines().count(), 4);
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, json!({"schema": "kvant.plan/1", "head": {"nested": {}}, "rows": [{"name": "a\nb"}, 2]}));
        assert_eq!(
            object("list", &json!({}), "rows", std::iter::empty()),
            "{\"schema\":\"kvant.list/1\",\"rows\":[\n\n]}"
        );
    }
}
