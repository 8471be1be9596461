//! Differences of Python's Jinja from `minijinja`: printing of values, `tojson`, and the date.

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Output, State, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io;

/// Prints a value: Python writes `True`, `False` and `None`.
pub(super) fn format(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    if value.is_none() {
        return Ok(out.write_str("None")?);
    }
    match bool::try_from(value.clone()) {
        Ok(true) if value.kind() == minijinja::value::ValueKind::Bool => Ok(out.write_str("True")?),
        Ok(false) if value.kind() == minijinja::value::ValueKind::Bool => Ok(out.write_str("False")?),
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// `json.dumps(value, ensure_ascii=False)` of Python, with its arguments `indent` and `sort_keys`.
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let (sort, ascii): (Option<bool>, Option<bool>) = (options.get("sort_keys")?, options.get("ensure_ascii")?);
    options.assert_all_used()?;
    if ascii == Some(true) || indent.is_some_and(|indent| indent > 16) {
        return Err(Error::new(ErrorKind::InvalidOperation, "an argument of tojson that is not handled"));
    }
    let invalid = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let mut value = serde_json::to_value(value).map_err(invalid)?;
    if sort == Some(true) {
        value.sort_all_objects();
    }
    let (mut json, spaces) = (Vec::new(), " ".repeat(indent.unwrap_or(0)));
    match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut json, Spaced)),
        Some(_) => {
            let pretty = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut json, pretty))
        }
    }
    .map_err(invalid)?;
    Ok(Value::from(String::from_utf8_lossy(&json).into_owned()))
}

/// JSON on one line, with a space after each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        out.write_all(if first { b"" } else { b", " })
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}

/// The date in templates: always the same, so that the same data give the same tokens. It is the one that
/// Llama's own templates fall back to, Friday 26 July 2024, midnight.
const DATE: [(char, &str); 15] = [
    ('%', "%"),
    ('A', "Friday"),
    ('a', "Fri"),
    ('B', "July"),
    ('b', "Jul"),
    ('d', "26"),
    ('e', "26"),
    ('F', "2024-07-26"),
    ('H', "00"),
    ('I', "12"),
    ('M', "00"),
    ('m', "07"),
    ('S', "00"),
    ('Y', "2024"),
    ('y', "24"),
];

/// `strftime_now` of transformers, with [`DATE`] for today.
pub(super) fn strftime(format: &str) -> Result<String, Error> {
    let (mut text, mut rest) = (String::new(), format.chars());
    while let Some(c) = rest.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let code = rest.next().unwrap_or('%');
        let known = DATE.iter().find(|(known, _)| *known == code);
        let unknown = || Error::new(ErrorKind::InvalidOperation, format!("a date with %{code}"));
        text.push_str(known.ok_or_else(unknown)?.1);
    }
    Ok(text)
}
