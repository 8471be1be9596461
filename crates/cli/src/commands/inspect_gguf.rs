//! `kvant inspect model.gguf`.

use crate::pattern;
use crate::table::{Align, Table};
use kvant::inspect::gguf::{bytes, json_of, json_of_array, shares};
use kvant::text::{printable, size};
use kvant_container::gguf::{GgufFile, GgufTensor, Text, Value as GgufValue};
use serde_json::Value;

/// Longest string of metadata that is shown whole, in characters.
const SHOWN: usize = 60;

/// Elements of an array that are shown.
const ELEMENTS: usize = 4;

/// What a file holds; `all` lists every tensor.
pub fn text(file: &GgufFile, all: bool, width: usize) -> String {
    let tensors = if all { table_of_all(file) } else { table_of_groups(file) };
    let tables = [metadata(file), types(file), tensors].map(|table| table.render(width));
    let parts: Vec<String> = std::iter::once(head(file)).chain(tables).collect();
    parts.join("\n\n")
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

fn types(file: &GgufFile) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[("type", Left), ("tensors", Right), ("elements", Right), ("bytes", Right)]);
    for (kind, share) in shares(file) {
        let (tensors, elements) = (share.tensors.to_string(), share.elements.to_string());
        table.push([kind.to_owned(), tensors, elements, size::bytes(share.bytes)]);
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
