//! The contents of GGUF files in words.

use super::Section;
use super::inspect::{TensorRow, tensors, types};
use crate::inspect::gguf::{bytes, json_of, json_of_array, shares};
use crate::text::{Align, Table, size};
use kvant_container::gguf::{GgufFile, Text, Value as GgufValue};
use kvant_quant::counts::number;
use serde_json::Value;

/// Longest string of metadata that is shown whole, in characters.
const SHOWN: usize = 60;

/// Elements of an array that are shown.
const ELEMENTS: usize = 4;

/// The contents of a file; `all` lists each tensor.
pub fn sections(file: &GgufFile, all: bool) -> Vec<Section> {
    let rows = file.tensors().map(|tensor| TensorRow {
        name: tensor.name().to_owned(),
        dtype: tensor.kind().to_string(),
        shape: size::shape(tensor.shape()),
        bytes: tensor.byte_len(),
    });
    let tables = [metadata(file), types(shares(file).into_iter()), tensors(rows, all)];
    [head(file)].into_iter().chain(tables.map(Section::Table)).collect()
}

fn head(file: &GgufFile) -> Section {
    let stated = |key: &str| file.metadata().get(key).map_or_else(|| "unknown".to_owned(), shown);
    Section::Lines(vec![
        ("architecture", stated("general.architecture")),
        ("name", stated("general.name")),
        ("tokenizer", stated("tokenizer.ggml.model")),
        ("version", file.version().to_string()),
        ("size", format!("{} in {}", size::bytes(bytes(file)), number(file.len(), "tensor"))),
    ])
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
