//! The formats that a quantized model is written in.

use kvant_llm::export::Export;

/// A format of the output: a checkpoint format, GGUF, or an ONNX graph of the decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A checkpoint, or a GGUF file.
    Export(Export),
    /// An ONNX graph of the quantized decoder.
    Onnx,
}

impl Format {
    /// The name of [`Format::Onnx`].
    pub const ONNX: &'static str = "onnx";

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Format::Export(export) => export.row().name,
            Format::Onnx => Format::ONNX,
        }
    }
}
