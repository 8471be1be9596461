//! The formats that `--format` names.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kvant::Format;
use kvant_llm::export::{EXPORTS, Export};

pub(super) const GGUF: &str = "gguf";

pub(super) fn format_parser() -> impl TypedValueParser<Value = Format> {
    let names = EXPORTS.iter().map(|row| PossibleValue::new(row.name).help(row.about));
    let onnx = PossibleValue::new(Format::ONNX).help("a graph with a cache of keys and values, for onnxruntime");
    PossibleValuesParser::new(names.chain([onnx])).try_map(|name| match name.as_str() {
        Format::ONNX => Ok(Format::Onnx),
        name => name.parse::<Export>().map(Format::Export),
    })
}
