//! JSON as Python writes it: with bare `NaN`, `Infinity` and `-Infinity`, which the standard does not know, and perhaps a
//! byte order mark. They are read as strings with a mark that no text has, and written back as they were.

use serde_json::Value;

/// Stands before the name of a number in the string that holds its place. In JSON text it appears escaped.
const MARK: &str = "\\u0000kvant:";

/// Numbers that JSON does not allow.
const NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// Parses a document.
pub fn parse(text: &[u8]) -> serde_json::Result<Value> {
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    // Most documents are plain, and are parsed as they are.
    serde_json::from_slice(text).or_else(|error| match marked(text) {
        Some(marked) => serde_json::from_slice(&marked),
        None => Err(error),
    })
}

/// The document with names of numbers in marked strings; `None` where there are none.
fn marked(text: &[u8]) -> Option<Vec<u8>> {
    let (mut out, mut rest, mut found) = (Vec::with_capacity(text.len()), text, false);
    let (mut in_string, mut escaped) = (false, false);
    while let Some((&byte, after)) = rest.split_first() {
        let number = NUMBERS.iter().find(|number| !in_string && rest.starts_with(number.as_bytes()));
        if let Some(number) = number {
            out.extend(format!("\"{MARK}{number}\"").bytes());
            (rest, found) = (&rest[number.len()..], true);
            continue;
        }
        in_string ^= byte == b'"' && !escaped;
        escaped = in_string && byte == b'\\' && !escaped;
        out.push(byte);
        rest = after;
    }
    found.then_some(out)
}

/// The text of a document, indented, with numbers as Python writes them: what [`Checkpoint::config`] has read.
///
/// [`Checkpoint::config`]: crate::Checkpoint::config
pub fn to_text(document: &Value) -> serde_json::Result<String> {
    let text = serde_json::to_string_pretty(document)?;
    Ok(NUMBERS.iter().fold(text, |text, number| text.replace(&format!("\"{MARK}{number}\""), number)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_infinity_and_nan_survive() {
        let text = "\u{feff}{\"limit\": [0.0, Infinity, -Infinity], \"eps\": NaN, \"text\": \"a \\\" NaN Infinity\"}";
        let document = parse(text.as_bytes()).unwrap();
        assert_eq!(document["text"], "a \" NaN Infinity");
        assert_eq!(document["limit"][0], 0.0);
        let written = to_text(&document).unwrap();
        for part in ["Infinity", "-Infinity", "\"eps\": NaN", "\"a \\\" NaN Infinity\""] {
            assert!(written.contains(part), "{written}");
        }
        assert!(!written.contains("kvant"));
        assert_eq!(parse(written.as_bytes()).unwrap(), document);
    }

    #[test]
    fn invalid_python_json_is_refused() {
        for text in ["{\"a\": Infinit}", "{\"a\": NaN", "", "{\"a\": +NaN}"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
