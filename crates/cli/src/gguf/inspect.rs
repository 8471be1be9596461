//! `kvant inspect model.gguf`: what a file holds.

use crate::escape::printable;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::table::{Align, Table};
use crate::{json_lines, pattern, size};
use kvant_container::gguf::{Array, GgufFile, GgufTensor, Text, Value as GgufValue};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Longest string of metadata that is shown whole, in characters.
const SHOWN: usize = 60;

/// Elements of an array that are shown.
const ELEMENTS: usize = 4;

/// Looks at a file; reads its header only. `all` lists every tensor.
///
/// # Errors
/// Whatever is wrong with the file.
pub fn run(path: &Path, all: bool, printer: &Printer) -> Result<(), Failure> {
    let file = GgufFile::open(path)?;
    if printer.is_json() {
        return printer.data(&json_text(&file));
    }
    let tensors = if all { table_of_all(&file) } else { table_of_groups(&file) };
    let width = printer.width();
    let tables = [metadata(&file), types(&file), tensors].map(|table| table.render(width));
    let parts: Vec<String> = std::iter::once(head(&file)).chain(tables).collect();
    printer.data(&parts.join("\n\n"))
}

fn head(file: &GgufFile) -> String {
    let stated = |key: &str| file.metadata().get(key).map_or_else(|| "unknown".to_owned(), shown);
    let lines = [
        ("architecture", stated("general.architecture")),
        ("name", stated("general.name")),
        ("tokenizer", stated("tokenizer.ggml.model")),
        ("version", file.version().to_string()),
        ("size", format!("{} in {} tensors", size::bytes(bytes(file)), file.len())),
    ];
    printable(&lines.map(|(name, value)| format!("{name:<13}  {value}")).join("\n"))
}

fn bytes(file: &GgufFile) -> u64 {
    file.tensors().map(|tensor| tensor.byte_len()).sum()
}

fn metadata(file: &GgufFile) -> Table {
    let mut table = Table::new(&[("key", Align::Left), ("value", Align::Left)]);
    file.metadata().entries().iter().for_each(|(key, value)| table.push([key.clone(), shown(value)]));
    table
}

/// A value on one line, cut short.
fn shown(value: &GgufValue) -> String {
    match value {
        GgufValue::String(text) => shorten(text),
        GgufValue::Array(array) => {
            let Value::Array(first) = json_of_array(array, ELEMENTS) else { return String::new() };
            let more = if array.len() > ELEMENTS { format!(" ... {} in all", array.len()) } else { String::new() };
            let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), |text| shorten(&text.into()));
            format!("{}{more}", first.iter().map(text).collect::<Vec<_>>().join(", "))
        }
        other => json_of(other).to_string(),
    }
}

fn shorten(text: &Text) -> String {
    let text = text.to_lossy();
    let cut: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().count() > SHOWN { format!("{cut} ...") } else { cut }
}

/// A value as JSON has it; what JSON has no number for is a string.
fn json_of(value: &GgufValue) -> Value {
    match value {
        GgufValue::U8(n) => json!(n),
        GgufValue::I8(n) => json!(n),
        GgufValue::U16(n) => json!(n),
        GgufValue::I16(n) => json!(n),
        GgufValue::U32(n) => json!(n),
        GgufValue::I32(n) => json!(n),
        GgufValue::U64(n) => json!(n),
        GgufValue::I64(n) => json!(n),
        GgufValue::F32(x) => float(f64::from(*x), x.to_string()),
        GgufValue::F64(x) => float(*x, x.to_string()),
        GgufValue::Bool(yes) => json!(yes),
        GgufValue::String(text) => json!(text.to_lossy()),
        GgufValue::Array(array) => json_of_array(array, usize::MAX),
    }
}

/// The shortest number that is read as the same value.
fn float(x: f64, shortest: String) -> Value {
    if x.is_finite() { shortest.parse::<f64>().map_or(json!(x), |x| json!(x)) } else { json!(shortest) }
}

/// The first elements of an array.
fn json_of_array(array: &Array, most: usize) -> Value {
    macro_rules! each {
        ($values:expr, $variant:ident) => {
            $values.iter().take(most).map(|value| json_of(&GgufValue::$variant(value.clone()))).collect()
        };
    }
    Value::Array(match array {
        Array::U8(values) => each!(values, U8),
        Array::I8(values) => each!(values, I8),
        Array::U16(values) => each!(values, U16),
        Array::I16(values) => each!(values, I16),
        Array::U32(values) => each!(values, U32),
        Array::I32(values) => each!(values, I32),
        Array::F32(values) => each!(values, F32),
        Array::Bool(values) => each!(values, Bool),
        Array::String(values) => each!(values, String),
        Array::Array(values) => each!(values, Array),
        Array::U64(values) => each!(values, U64),
        Array::I64(values) => each!(values, I64),
        Array::F64(values) => each!(values, F64),
    })
}

/// Number, elements and bytes by type.
fn shares(file: &GgufFile) -> BTreeMap<&'static str, (usize, u64, u64)> {
    let mut shares: BTreeMap<&'static str, (usize, u64, u64)> = BTreeMap::new();
    for tensor in file.tensors() {
        let share = shares.entry(tensor.kind().name()).or_default();
        *share = (share.0 + 1, share.1 + elements(tensor), share.2 + tensor.byte_len());
    }
    shares
}

fn elements(tensor: GgufTensor<'_>) -> u64 {
    tensor.shape().iter().map(|dim| *dim as u64).product()
}

fn types(file: &GgufFile) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[("type", Left), ("tensors", Right), ("elements", Right), ("bytes", Right)]);
    for (kind, (tensors, elements, bytes)) in shares(file) {
        table.push([kind.to_owned(), tensors.to_string(), elements.to_string(), size::bytes(bytes)]);
    }
    table
}

fn table_of_all(file: &GgufFile) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[("tensor", Left), ("type", Left), ("shape", Left), ("bytes", Right)]);
    for tensor in file.tensors() {
        let (kind, shape) = (tensor.kind().to_string(), size::shape(tensor.shape()));
        table.push([tensor.name().to_owned(), kind, shape, size::bytes(tensor.byte_len())]);
    }
    table
}

fn table_of_groups(file: &GgufFile) -> Table {
    use Align::{Left, Right};
    let titles = [("tensors", Left), ("n", Right), ("type", Left), ("shape", Left), ("bytes", Right)];
    let mut table = Table::new(&titles);
    let key = |tensor: GgufTensor<'_>| (tensor.kind().to_string(), size::shape(tensor.shape()));
    let item = |tensor: GgufTensor<'_>| (tensor.name().to_owned(), key(tensor), tensor.byte_len());
    for group in pattern::group(file.tensors().map(item)) {
        let (kind, shape) = &group.key;
        table.push([&group.to_string(), &group.count.to_string(), kind, shape, &size::bytes(group.bytes)]);
    }
    table
}

/// One object, with a line for every tensor. Dimensions stand with the slowest first, as in other formats.
fn json_text(file: &GgufFile) -> String {
    let metadata: serde_json::Map<String, Value> =
        file.metadata().entries().iter().map(|(key, value)| (key.clone(), json_of(value))).collect();
    let share = |(tensors, elements, bytes): (usize, u64, u64)| json!({"tensors": tensors, "elements": elements, "bytes": bytes});
    let types: BTreeMap<&str, Value> = shares(file).into_iter().map(|(kind, all)| (kind, share(all))).collect();
    let head = json!({
        "model": file.path().display().to_string(),
        "version": file.version(),
        "alignment": file.alignment(),
        "bytes": bytes(file),
        "metadata": metadata,
        "types": types,
    });
    let tensors = file.tensors().map(|tensor| {
        json!({"name": tensor.name(), "dtype": tensor.kind().name(), "shape": tensor.shape(), "bytes": tensor.byte_len()})
    });
    json_lines::object("inspect", &head, "tensors", tensors)
}
