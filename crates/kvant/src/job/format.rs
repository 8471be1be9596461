//! The formats that a quantized model is written in.

use kvant_formats::format::{FormatHandle, OutputFormat};

/// A format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A checkpoint, plain floats, or a GGUF file.
    Model(OutputFormat),
    /// An ONNX graph of the quantized decoder.
    Onnx,
}

impl Format {
    /// The name of [`Format::Onnx`].
    pub const ONNX: &'static str = "onnx";

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Format::Model(format) => format.name(),
            Format::Onnx => Format::ONNX,
        }
    }
}

impl From<OutputFormat> for Format {
    fn from(format: OutputFormat) -> Format {
        Format::Model(format)
    }
}

impl From<FormatHandle> for Format {
    fn from(format: FormatHandle) -> Format {
        Format::Model(OutputFormat::Checkpoint(format))
    }
}
