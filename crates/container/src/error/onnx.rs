//! Errors of an ONNX file and of the data it refers to.

use crate::diagnostic::{Diagnostic, ErrorKind};
use crate::error::Quoted;

/// A problem of an ONNX file; the file is named by [`crate::Error::Onnx`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OnnxError {
    /// The bytes are not a protobuf message of an ONNX model.
    #[error("not an ONNX model")]
    NotAModel,
    /// The file is one of another kind, under a name that ends in .onnx.
    #[error("a GGUF file, and not an ONNX model")]
    Gguf,
    /// A model that cannot be written as a protobuf message.
    #[error("no protobuf message of an ONNX model: {0}")]
    Protobuf(String),
    /// The bytes begin as an ONNX model and end too early.
    #[error("an ONNX model that is cut short: the file ends after {0} bytes")]
    CutShort(usize),
    /// A message without a graph.
    #[error("the model has no graph")]
    NoGraph,
    /// A tensor's external data lie outside of the model's directory.
    #[error("tensor {}: its external data {} are outside of the model's directory", Quoted(.tensor), Quoted(.location))]
    OutsideDirectory {
        /// The tensor.
        tensor: String,
        /// The location the file names.
        location: String,
    },
    /// A tensor's external data have no usable location, offset or length.
    #[error("tensor {}: external data: {}", Quoted(.tensor), .problem)]
    ExternalData {
        /// The tensor.
        tensor: String,
        /// The problem.
        problem: String,
    },
    /// The name of a file of external data, which goes into the graph, is not text.
    #[error("the name of the graph is not UTF-8, and a graph with external data states it")]
    ExternalName,
    /// The external file cannot be read.
    #[error("tensor {}: cannot open its external data {}: {}", Quoted(.tensor), Quoted(.location), .cause)]
    NoExternalFile {
        /// The tensor.
        tensor: String,
        /// The location the file names.
        location: String,
        /// The system's answer.
        cause: String,
    },
    /// A tensor whose data do not have the size of its type and shape.
    #[error("tensor {}: {}", Quoted(.tensor), .problem)]
    Tensor {
        /// The tensor.
        tensor: String,
        /// The problem.
        problem: String,
    },
    /// The model is larger than one protobuf message can be.
    #[error("the model has {0} bytes, more than the 2 GB that one protobuf file can hold")]
    TooLargeForOneFile(u64),
}

impl Diagnostic for OnnxError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoExternalFile { .. } => ErrorKind::Io,
            Self::TooLargeForOneFile(_) => ErrorKind::Unsupported,
            _ => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotAModel => Some("name the file of an ONNX graph, or export the model again"),
            Self::Gguf => Some("give it a name that ends in .gguf"),
            Self::CutShort(_) => Some("copy or download the file again, all of it"),
            Self::OutsideDirectory { .. } => Some("put the data file itself, not a link to it, beside the model"),
            Self::NoExternalFile { .. } => Some("the data file belongs beside the model: copy or download it as well"),
            Self::ExternalName => Some("choose a name in UTF-8, or write no external data"),
            Self::TooLargeForOneFile(_) => Some("write its tensors to a file beside it: external data"),
            _ => None,
        };
        hint.map(str::to_owned)
    }
}
