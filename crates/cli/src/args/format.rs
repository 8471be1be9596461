//! The layouts that `--format` names: those of checkpoints, GGUF, and graphs.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kvant_llm::export::{EXPORTS, Export};

pub(super) const ONNX: &str = "onnx";

pub(super) const GGUF: &str = "gguf";

/// What `kvant quantize` makes of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A checkpoint, or a GGUF file.
    Export(Export),
    /// An ONNX graph of the quantized decoder.
    Onnx,
}

impl Format {
    /// The name in `--format`.
    pub fn name(self) -> &'static str {
        match self {
            Format::Export(export) => export.row().name,
            Format::Onnx => ONNX,
        }
    }
}

pub(super) fn format_parser() -> impl TypedValueParser<Value = Format> {
    let names = EXPORTS.iter().map(|row| PossibleValue::new(row.name).help(row.about));
    let onnx = PossibleValue::new(ONNX).help("a graph with a cache of keys and values, for onnxruntime");
    PossibleValuesParser::new(names.chain([onnx])).try_map(|name| match name.as_str() {
        ONNX => Ok(Format::Onnx),
        name => name.parse::<Export>().map(Format::Export),
    })
}
