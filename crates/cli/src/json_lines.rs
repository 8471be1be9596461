//! JSON objects that are whole and still can be searched line by line.

use serde_json::Value;

/// The object `head` with one more field: an array whose elements have a line each.
pub fn object(head: &Value, field: &str, elements: impl Iterator<Item = Value>) -> String {
    let head = head.to_string();
    let open = head.strip_suffix('}').unwrap_or(&head);
    let comma = if open.ends_with('{') { "" } else { "," };
    let lines: Vec<String> = elements.map(|element| element.to_string()).collect();
    format!("{open}{comma}{}:[\n{}\n]}}", Value::from(field), lines.join(",\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_are_whole_and_elements_have_lines() {
        let elements = || [json!({"name": "a\nb"}), json!(2)].into_iter();
        let text = object(&json!({"head": {"nested": {}}}), "rows", elements());
        assert_eq!(text.lines().count(), 4);
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, json!({"head": {"nested": {}}, "rows": [{"name": "a\nb"}, 2]}));
        assert_eq!(object(&json!({}), "rows", std::iter::empty()), "{\"rows\":[\n\n]}");
    }
}
