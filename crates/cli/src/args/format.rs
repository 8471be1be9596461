//! The formats that `--format` names.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kvant::Format;
use kvant_formats::format::OutputFormat;

pub(super) const GGUF: &str = "gguf";

pub(super) fn format_parser() -> impl TypedValueParser<Value = Format> {
    let names = OutputFormat::all().map(|format| PossibleValue::new(format.name()).help(format.about()));
    let onnx = PossibleValue::new(Format::ONNX).help("a graph with a cache of keys and values, for onnxruntime");
    PossibleValuesParser::new(names.chain([onnx])).try_map(|name| match name.as_str() {
        Format::ONNX => Ok(Format::Onnx),
        name => name.parse::<OutputFormat>().map(Format::Model),
    })
}
